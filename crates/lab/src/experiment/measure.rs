use pollux_sim::{Summary, SweepOutcome};
use serde::Deserialize;

use super::outcome::Outcome;

const MIN_S: f64 = 60.0;
const HOUR_S: f64 = 3600.0;

/// A number that says how a row did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Measure {
    AvgJctS,
    AvgJctH,
    P50JctH,
    P99JctH,
    MakespanH,
    GpuHours,
    GpuHoursPerJob,
    NodeHours,
    Utilisation,
    RestartsPerJob,
    QueuedMin,
    RhoMax,
    RhoP90,
    #[serde(rename = "rho_above_1")]
    RhoAbove1,
    Efficiency,
}

/// How several workloads make one number.
#[derive(Clone, Copy)]
enum Over {
    Mean,
    Most,
}

struct Shown {
    name: &'static str,
    heading: &'static str,
    unit: &'static str,
    /// By the figures of a run and its number of jobs.
    value: fn(&Summary, f64) -> f64,
    over: Over,
}

type OfSweep = fn(&SweepOutcome) -> f64;

/// What can be said of a sweep.
const OF_SWEEPS: [(Measure, OfSweep); 4] = [
    (Measure::MakespanH, |sweep| sweep.makespan_s / HOUR_S),
    (Measure::GpuHours, |sweep| sweep.gpu_hours),
    (Measure::NodeHours, |sweep| sweep.node_hours),
    (Measure::RestartsPerJob, |sweep| {
        sweep.trials.iter().map(|trial| f64::from(trial.restarts)).sum::<f64>() / sweep.trials.len() as f64
    }),
];

impl Measure {
    /// As it is written in files.
    pub(super) fn name(self) -> &'static str {
        self.shown().name
    }

    /// What people read, without its unit.
    pub(super) fn heading(self) -> &'static str {
        self.shown().heading
    }

    pub(super) fn unit(self) -> &'static str {
        self.shown().unit
    }

    /// Heading and unit.
    pub(super) fn title(self) -> String {
        match self.unit() {
            "" => self.heading().to_owned(),
            unit => format!("{} ({unit})", self.heading()),
        }
    }

    /// Whether a sweep has it.
    pub(super) fn is_of_sweeps(self) -> bool {
        OF_SWEEPS.iter().any(|(measure, _)| *measure == self)
    }

    /// The names of those that a sweep has.
    pub(super) fn of_sweeps() -> String {
        OF_SWEEPS.map(|(measure, _)| measure.name()).join(", ")
    }

    /// Over all workloads of a row.
    pub(super) fn of(self, outcomes: &[Outcome]) -> f64 {
        let Shown { value, over, .. } = self.shown();
        let of_sweep = |sweep: &SweepOutcome| {
            OF_SWEEPS.iter().find(|(measure, _)| *measure == self).map_or(f64::NAN, |(_, value)| value(sweep))
        };
        let values = outcomes.iter().map(|outcome| match outcome {
            Outcome::Run(run) => value(&run.summary(), run.jobs.len() as f64),
            Outcome::Sweep(sweep) => of_sweep(sweep),
        });
        match over {
            Over::Mean => values.sum::<f64>() / outcomes.len() as f64,
            Over::Most => values.fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn shown(self) -> Shown {
        let shown = |name, heading, unit, value| Shown { name, heading, unit, value, over: Over::Mean };
        match self {
            Self::AvgJctS => shown("avg_jct_s", "average JCT", "s", |run, _| run.avg_jct_s),
            Self::AvgJctH => shown("avg_jct_h", "average JCT", "h", |run, _| run.avg_jct_s / HOUR_S),
            Self::P50JctH => shown("p50_jct_h", "median JCT", "h", |run, _| run.p50_jct_s / HOUR_S),
            Self::P99JctH => shown("p99_jct_h", "p99 JCT", "h", |run, _| run.p99_jct_s / HOUR_S),
            Self::MakespanH => shown("makespan_h", "makespan", "h", |run, _| run.makespan_s / HOUR_S),
            Self::GpuHours => shown("gpu_hours", "GPU time", "h", |run, _| run.gpu_hours),
            Self::GpuHoursPerJob => shown("gpu_hours_per_job", "GPU time", "h/job", |run, jobs| run.gpu_hours / jobs),
            Self::NodeHours => shown("node_hours", "node time", "h", |run, _| run.node_hours),
            Self::Utilisation => shown("utilisation", "utilisation", "%", |run, _| run.utilisation * 100.0),
            Self::RestartsPerJob => shown("restarts_per_job", "restarts", "/job", |run, _| run.restarts_per_job),
            Self::QueuedMin => shown("queued_min", "queued", "min", |run, _| run.avg_queued_s / MIN_S),
            Self::RhoMax => Shown { over: Over::Most, ..shown("rho_max", "largest ρ", "", |run, _| run.rho_max) },
            Self::RhoP90 => shown("rho_p90", "p90 of ρ", "", |run, _| run.rho_p90),
            Self::RhoAbove1 => shown("rho_above_1", "ρ above 1", "%", |run, _| run.rho_above_1 * 100.0),
            Self::Efficiency => shown("efficiency", "efficiency", "%", |run, _| run.avg_efficiency * 100.0),
        }
    }
}
