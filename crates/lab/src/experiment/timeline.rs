//! One job over time, and what it had on average in each phase.

use pollux_sim::{ClusterSample, JobOutcome, JobSample};

use super::file::Phase;
use super::grid::{Column, Grid, Value};
use super::results::{Place, Results};

const HOUR_S: f64 = 3600.0;

/// The job under each row.
pub(super) struct Timeline<'a> {
    pub(super) rows: Vec<JobTimeline<'a>>,
    pub(super) phases: Vec<TimelinePhase<'a>>,
}

/// The job under one row.
pub(super) struct JobTimeline<'a> {
    pub(super) row: usize,
    pub(super) label: &'a str,
    job: &'a JobOutcome,
    cluster: &'a [ClusterSample],
}

/// A phase from its beginning.
pub(super) struct TimelinePhase<'a> {
    pub(super) label: &'a str,
    pub(super) from_h: f64,
    pub(super) until_h: f64,
}

impl<'a> Timeline<'a> {
    /// The job in the first workload. Rows without it were refused before they were simulated.
    pub(super) fn new(results: &'a Results<'_>, job: &str, phases: &'a [Phase]) -> Self {
        let of_row = |row: usize| {
            let outcome = results.outcomes(Place { source: 0, row, point: 0 }).first()?.run()?;
            let job = outcome.jobs.iter().find(|outcome| outcome.name == job)?;
            Some(JobTimeline { row, label: &results.file.rows[row].label, job, cluster: &outcome.cluster })
        };
        let rows: Vec<JobTimeline<'_>> = (0..results.file.rows.len()).filter_map(of_row).collect();
        let end_h = rows.iter().map(JobTimeline::end_h).fold(0.0, f64::max);
        Self { phases: from_beginnings(phases, end_h), rows }
    }

    /// The moment the job ends under the slowest row.
    pub(super) fn end_h(&self) -> f64 {
        self.rows.iter().map(JobTimeline::end_h).fold(0.0, f64::max)
    }

    /// Averages in each phase.
    pub(super) fn grid(&self) -> Grid {
        let columns = vec![
            Column::text("row"),
            Column::text("phase"),
            Column::number("from_h", "from (h)"),
            Column::number("until_h", "until (h)"),
            Column::number("jobs", "jobs present"),
            Column::number("gpus", "GPUs"),
            Column::number("batch_size", "batch size"),
            Column::number("efficiency", "efficiency (%)"),
        ];
        let mut lines = Vec::new();
        for timeline in &self.rows {
            for phase in self.phases.iter().filter(|phase| phase.from_h < timeline.end_h()) {
                let until_h = phase.until_h.min(timeline.end_h());
                let average = |samples: &[(f64, f64)]| mean(samples, phase.from_h, until_h);
                let efficiency: Vec<_> =
                    timeline.efficiency().iter().map(|&(at, efficiency)| (at, efficiency * 100.0)).collect();
                lines.push(vec![
                    Value::Text(timeline.label.to_owned()),
                    Value::Text(phase.label.to_owned()),
                    Value::number(phase.from_h),
                    Value::number(until_h),
                    Value::number(average(&timeline.jobs_present())),
                    Value::number(average(&timeline.gpus())),
                    Value::number(average(&timeline.batch_sizes())),
                    Value::number(average(&efficiency)),
                ]);
            }
        }
        Grid { columns, lines }
    }
}

impl JobTimeline<'_> {
    pub(super) fn end_h(&self) -> f64 {
        self.job.finished_s / HOUR_S
    }

    /// GPUs held, from each moment (hours) on.
    pub(super) fn gpus(&self) -> Vec<(f64, f64)> {
        self.series(|sample| Some(f64::from(sample.replicas)))
    }

    /// Total batch, which outlasts a restart.
    pub(super) fn batch_sizes(&self) -> Vec<(f64, f64)> {
        self.series(|sample| (sample.batch_size > 0).then(|| f64::from(sample.batch_size)))
    }

    /// Statistical efficiency as a share, likewise.
    pub(super) fn efficiency(&self) -> Vec<(f64, f64)> {
        self.series(|sample| (sample.batch_size > 0).then_some(sample.efficiency))
    }

    /// Nodes of the cluster that are up.
    pub(super) fn nodes(&self) -> Vec<(f64, f64)> {
        self.cluster.iter().map(|sample| (sample.time_s / HOUR_S, f64::from(sample.nodes))).collect()
    }

    /// Node-hours paid up to each moment.
    pub(super) fn cost(&self) -> Vec<(f64, f64)> {
        let nodes = self.nodes();
        let mut paid = 0.0;
        let mut cost = vec![(0.0, paid)];
        let ends = nodes.iter().skip(1).map(|sample| sample.0).chain([self.end_h()]);
        for (&(from, count), end) in nodes.iter().zip(ends) {
            paid += count * (end - from).max(0.0);
            cost.push((end, paid));
        }
        cost
    }

    fn jobs_present(&self) -> Vec<(f64, f64)> {
        let count = |sample: &ClusterSample| f64::from(sample.jobs_running + sample.jobs_waiting);
        self.cluster.iter().map(|sample| (sample.time_s / HOUR_S, count(sample))).collect()
    }

    fn series(&self, value: impl Fn(&JobSample) -> Option<f64>) -> Vec<(f64, f64)> {
        let samples = self.job.series.iter();
        samples.filter_map(|sample| Some((sample.time_s / HOUR_S, value(sample)?))).collect()
    }
}

/// Phases one after the other up to the end, a nameless one where none are told.
fn from_beginnings(phases: &[Phase], end_h: f64) -> Vec<TimelinePhase<'_>> {
    let mut from_h = 0.0;
    let mut timed = Vec::new();
    for phase in phases {
        timed.push(TimelinePhase { label: &phase.label, from_h, until_h: phase.until_h });
        from_h = phase.until_h;
    }
    if timed.is_empty() {
        timed.push(TimelinePhase { label: "", from_h, until_h: end_h });
    }
    timed.retain(|phase| phase.from_h < end_h);
    for phase in &mut timed {
        phase.until_h = phase.until_h.min(end_h);
    }
    timed
}

/// Mean over time of what holds from each moment on, as far as there is any.
fn mean(samples: &[(f64, f64)], from: f64, until: f64) -> f64 {
    let ends = samples.iter().skip(1).map(|sample| sample.0).chain([until]);
    let (mut area, mut width) = (0.0, 0.0);
    for (&(at, value), end) in samples.iter().zip(ends) {
        let part = (end.min(until) - at.max(from)).max(0.0);
        area += value * part;
        width += part;
    }
    if width > 0.0 { area / width } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_weighed_by_time() {
        let samples = [(0.0, 4.0), (1.0, 8.0), (3.0, 2.0)];
        assert_eq!(mean(&samples, 0.0, 4.0), (4.0 + 16.0 + 2.0) / 4.0);
        assert_eq!(mean(&samples, 2.0, 3.0), 8.0);
        assert_eq!(mean(&samples, 3.5, 9.0), 2.0);
        assert_eq!(mean(&[(5.0, 1.0)], 0.0, 1.0), 0.0);
    }
}
