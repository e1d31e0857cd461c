use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use pollux_api::Job;
use pollux_job::Phase;
use serde::Serialize;

use super::DemoError;
use super::recording::{Recording, Track, mean};
use crate::table::{Align, Cell, Table};

const PARTS: usize = 24;

/// How the demo went.
#[derive(Debug, Serialize)]
pub(crate) struct DemoReport {
    jobs: Vec<JobReport>,
    pollux: ClusterReport,
    equal_shares: ClusterReport,
    /// Seconds that trainings stood still for each change of their groups, the shortest first.
    pauses_s: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct JobReport {
    name: String,
    /// None for a job that was not done in time.
    completion_s: Option<f64>,
    gpus_over_time: Vec<u32>,
    batch_sizes: Vec<u64>,
    resizes: u32,
    mean_goodput: f64,
    equal_shares_completion_s: Option<f64>,
    equal_shares_mean_goodput: f64,
}

#[derive(Debug, Serialize)]
struct ClusterReport {
    mean_completion_s: Option<f64>,
    makespan_s: Option<f64>,
    /// Of all jobs together, until the last of them ended.
    mean_goodput: f64,
    /// Jobs that failed, and why.
    failures: Vec<String>,
}

impl DemoReport {
    pub(super) fn new(pollux: &Recording, equal: &Recording, mut pauses_s: Vec<f64>) -> Self {
        pauses_s.sort_by(f64::total_cmp);
        let job = |(ours, theirs): (&Track, &Track)| JobReport {
            name: ours.job.name.clone(),
            completion_s: ours.completion_s(),
            gpus_over_time: ours.replicas_over_time(PARTS),
            batch_sizes: ours.batches(),
            resizes: ours.job.restarts,
            mean_goodput: ours.mean_goodput(),
            equal_shares_completion_s: theirs.completion_s(),
            equal_shares_mean_goodput: theirs.mean_goodput(),
        };
        let jobs = pollux.tracks().zip(equal.tracks()).map(job).collect();
        Self { jobs, pollux: ClusterReport::new(pollux), equal_shares: ClusterReport::new(equal), pauses_s }
    }

    /// Whether all trainings that came to an end came to a good one.
    pub(crate) fn check(&self) -> Result<(), DemoError> {
        let jobs: Vec<String> =
            [&self.pollux, &self.equal_shares].into_iter().flat_map(|it| it.failures.clone()).collect();
        if jobs.is_empty() { Ok(()) } else { Err(DemoError::Failed { jobs }) }
    }

    /// The summary for people.
    pub(crate) fn write_text(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let (bold, dim) = (Style::new().bold(), Style::new().dimmed());
        let mut table = Table::with_headings(&[
            ("job", Align::Left),
            ("time", Align::Right),
            ("GPUs over its time", Align::Left),
            ("batch", Align::Left),
            ("goodput", Align::Right),
            ("equal shares", Align::Right),
            ("goodput", Align::Right),
            ("ratio", Align::Right),
        ]);
        for job in &self.jobs {
            table.push(job.cells());
        }
        writeln!(out, "\n{bold}the same six trainings on 8 slots, twice, for real and at the same time{bold:#}\n")?;
        table.write("  ", out)?;
        writeln!(out)?;
        let mut means = Table::without_headings(&[Align::Left, Align::Right, Align::Right, Align::Right]);
        means.push(["", "pollux", "equal shares", "ratio"].map(|text| Cell::styled(text, bold)).into());
        let (ours, theirs) = (&self.pollux, &self.equal_shares);
        means.push(comparison("average completion time", ours.mean_completion_s, theirs.mean_completion_s));
        means.push(comparison("all done after", ours.makespan_s, theirs.makespan_s));
        let goodput = |report: &ClusterReport| format!("{:.0}/s", report.mean_goodput);
        let gain = Some(ours.mean_goodput / theirs.mean_goodput).filter(|gain| gain.is_finite());
        let gain = coloured(gain, |gain| gain >= 1.0);
        means.push(vec![
            Cell::plain("average goodput"),
            Cell::plain(goodput(ours)),
            Cell::plain(goodput(theirs)),
            gain,
        ]);
        means.write("  ", out)?;
        if let (Some(median), Some(longest)) = (self.pauses_s.get(self.pauses_s.len() / 2), self.pauses_s.last()) {
            let (median, longest) = (median * 1e3, longest * 1e3);
            let changes = self.pauses_s.len();
            writeln!(
                out,
                "  {changes} resizes in place: training paused for {median:.0} ms (median), {longest:.0} ms at most"
            )?;
        }
        writeln!(
            out,
            "\n  {dim}equal shares: 2 GPUs for every job, the batch its user chose, first come first served.\n  \
             Goodput is samples/s that count in full, on average from submission to end. Steps are paced like a\n  \
             throughput model says; gradients, noise, batches and resizes are real.{dim:#}"
        )
    }
}

impl JobReport {
    fn cells(&self) -> Vec<Cell> {
        let gpus: String = self.gpus_over_time.iter().map(|&gpus| if gpus == 0 { '·' } else { digit(gpus) }).collect();
        let batches = match &self.batch_sizes[..] {
            [] => "-".to_owned(),
            [first, .., last] => {
                let largest = self.batch_sizes.iter().max().copied().unwrap_or(0);
                if largest > *last {
                    format!("{first} → {largest} → {last}")
                } else {
                    format!("{first} → {last}")
                }
            }
            [only] => only.to_string(),
        };
        vec![
            Cell::plain(&self.name),
            Cell::plain(seconds(self.completion_s)),
            Cell::styled(gpus, AnsiColor::Cyan.on_default()),
            Cell::plain(batches),
            Cell::plain(format!("{:.0}", self.mean_goodput)),
            Cell::plain(seconds(self.equal_shares_completion_s)),
            Cell::plain(format!("{:.0}", self.equal_shares_mean_goodput)),
            ratio(self.completion_s, self.equal_shares_completion_s),
        ]
    }
}

impl ClusterReport {
    fn new(recording: &Recording) -> Self {
        let times: Option<Vec<f64>> = recording.tracks().map(Track::completion_s).collect();
        let times = times.filter(|times| !times.is_empty());
        let jobs = || recording.tracks().map(|track| &track.job);
        let began = jobs().map(|job| job.submitted_ms).min();
        let ended = jobs().map(|job| job.ended_ms).max().flatten();
        Self {
            mean_completion_s: times.as_ref().map(|times| mean(times.iter().copied())),
            makespan_s: times.and(began).zip(ended).map(|(from, to)| to.saturating_sub(from) as f64 / 1000.0),
            mean_goodput: recording.mean_goodput(),
            failures: jobs().filter(|job| job.phase == Phase::Failed).map(failure).collect(),
        }
    }
}

fn comparison(what: &str, ours: Option<f64>, theirs: Option<f64>) -> Vec<Cell> {
    vec![Cell::plain(what), Cell::plain(seconds(ours)), Cell::plain(seconds(theirs)), ratio(ours, theirs)]
}

fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "not done".to_owned(), |seconds| format!("{seconds:.0} s"))
}

fn failure(job: &Job) -> String {
    format!("{} ({})", job.name, job.failure.as_deref().unwrap_or("nobody said why"))
}

/// Of two times.
fn ratio(ours: Option<f64>, theirs: Option<f64>) -> Cell {
    coloured(ours.zip(theirs).map(|(ours, theirs)| ours / theirs), |ratio| ratio <= 1.0)
}

/// Green is better, yellow worse.
fn coloured(ratio: Option<f64>, is_better: impl Fn(f64) -> bool) -> Cell {
    match ratio {
        Some(ratio) if is_better(ratio) => Cell::styled(format!("{ratio:.2}"), AnsiColor::Green.on_default()),
        Some(ratio) => Cell::styled(format!("{ratio:.2}"), AnsiColor::Yellow.on_default()),
        None => Cell::plain("-"),
    }
}

fn digit(gpus: u32) -> char {
    char::from_digit(gpus, 36).unwrap_or('+')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::recording::tests::job;
    use super::*;

    fn recording(goodput: f64, end: &serde_json::Value) -> Recording {
        let mut recording = Recording::default();
        recording.add(0.0, vec![job(1, &json!({"goodput": goodput, "batch_size": 64}))]);
        recording.add(1.0, vec![job(1, end)]);
        recording
    }

    #[test]
    fn clusters_are_compared_by_time_and_goodput() {
        let pollux = recording(30.0, &json!({"phase": "succeeded", "ended_ms": 5_000}));
        let equal = recording(20.0, &json!({"phase": "succeeded", "ended_ms": 9_000}));
        let report = DemoReport::new(&pollux, &equal, vec![0.2, 0.1, 0.3]);
        report.check().unwrap();
        let mut text = Vec::new();
        report.write_text(&mut text).unwrap();
        let text = anstream::adapter::strip_str(std::str::from_utf8(&text).unwrap()).to_string();
        let words = |start: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words("average completion"), "average completion time 4 s 8 s 0.50");
        assert_eq!(words("all done"), "all done after 4 s 8 s 0.50");
        assert_eq!(words("average goodput"), "average goodput 30/s 20/s 1.50");
        assert!(text.contains("3 resizes in place: training paused for 200 ms (median), 300 ms at most"), "{text}");
    }

    #[test]
    fn a_job_that_failed_is_told_and_one_that_was_not_done_is_no_failure() {
        let failed = recording(30.0, &json!({"phase": "failed", "ended_ms": 5_000, "failure": "exit code 1"}));
        let running = recording(20.0, &json!({"phase": "running"}));
        let report = DemoReport::new(&running, &failed, Vec::new());
        let error = report.check().unwrap_err();
        assert!(error.to_string().starts_with("trainings failed: job-1 (exit code 1); "), "{error}");
        assert_eq!(error.exit_code(), 1);
        assert!(DemoReport::new(&running, &running, Vec::new()).check().is_ok());
    }
}
