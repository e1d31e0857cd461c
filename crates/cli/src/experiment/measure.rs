use pollux_sim::{RunOutcome, Summary};
use serde::Deserialize;

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
    digits: usize,
    value: fn(&Summary) -> f64,
    over: Over,
}

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

    /// Digits worth showing behind the point.
    pub(super) fn digits(self) -> usize {
        self.shown().digits
    }

    /// Over all workloads of a row.
    pub(super) fn of(self, outcomes: &[RunOutcome]) -> f64 {
        let Shown { value, over, .. } = self.shown();
        let values = outcomes.iter().map(|outcome| value(&outcome.summary()));
        match over {
            Over::Mean => values.sum::<f64>() / outcomes.len() as f64,
            Over::Most => values.fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn shown(self) -> Shown {
        let shown = |name, heading, unit, digits, value| Shown { name, heading, unit, digits, value, over: Over::Mean };
        match self {
            Self::AvgJctS => shown("avg_jct_s", "average JCT", "s", 0, |run| run.avg_jct_s),
            Self::AvgJctH => shown("avg_jct_h", "average JCT", "h", 2, |run| run.avg_jct_s / HOUR_S),
            Self::P50JctH => shown("p50_jct_h", "median JCT", "h", 2, |run| run.p50_jct_s / HOUR_S),
            Self::P99JctH => shown("p99_jct_h", "p99 JCT", "h", 1, |run| run.p99_jct_s / HOUR_S),
            Self::MakespanH => shown("makespan_h", "makespan", "h", 1, |run| run.makespan_s / HOUR_S),
            Self::GpuHours => shown("gpu_hours", "GPU time", "h", 0, |run| run.gpu_hours),
            Self::Utilisation => shown("utilisation", "utilisation", "%", 1, |run| run.utilisation * 100.0),
            Self::RestartsPerJob => shown("restarts_per_job", "restarts", "/job", 2, |run| run.restarts_per_job),
            Self::QueuedMin => shown("queued_min", "queued", "min", 1, |run| run.avg_queued_s / MIN_S),
            Self::RhoMax => Shown { over: Over::Most, ..shown("rho_max", "largest ρ", "", 2, |run| run.rho_max) },
            Self::RhoP90 => shown("rho_p90", "p90 of ρ", "", 2, |run| run.rho_p90),
            Self::RhoAbove1 => shown("rho_above_1", "ρ above 1", "%", 1, |run| run.rho_above_1 * 100.0),
            Self::Efficiency => shown("efficiency", "efficiency", "%", 1, |run| run.avg_efficiency * 100.0),
        }
    }
}
