//! When jobs that wait would start and be complete: what `pollux what-if` says, asked again and again, at a bounded cost.

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pollux_job::JobId;
use pollux_server::{Foreseen, Outlook};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::status::{after, now};

/// What one forecast may take; what lies beyond is not foreseen.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two forecasts, at least.
const PAUSE: Duration = Duration::from_secs(20);
/// And so many times as long as the last one took: forecasts take up to 5% of a processor.
const REST: u32 = 20;

/// Moments that are foreseen of one job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Moments {
    pub(crate) start: Option<Time>,
    pub(crate) end: Option<Time>,
}

/// The newest forecast, and the one that is being made.
pub(crate) struct Forecasts {
    moments: BTreeMap<JobId, Moments>,
    due: Instant,
    made: Option<JoinHandle<(BTreeMap<JobId, Moments>, Duration)>>,
}

impl Forecasts {
    pub(crate) fn new() -> Self {
        Self { moments: BTreeMap::new(), due: Instant::now(), made: None }
    }

    /// Takes the forecast that is complete, if one is; whether the next should be begun.
    pub(crate) async fn is_due(&mut self) -> bool {
        if let Some(made) = self.made.take_if(|made| made.is_finished()) {
            // One that broke foresees nothing.
            let (moments, took) = made.await.unwrap_or_default();
            (self.moments, self.due) = (moments, Instant::now() + PAUSE.max(took * REST));
        }
        self.made.is_none() && Instant::now() >= self.due
    }

    /// Makes the next one, beside everything else.
    pub(crate) fn begin(&mut self, outlook: Outlook) {
        self.made = Some(spawn_blocking(move || {
            let (begun, at) = (Instant::now(), now());
            let foreseen = panic::catch_unwind(AssertUnwindSafe(|| outlook.foresee(PATIENCE)));
            (moments(foreseen.unwrap_or_default(), &at), begun.elapsed())
        }));
    }

    /// Nobody waits: nothing is to be foreseen.
    pub(crate) fn forget(&mut self) {
        self.moments.clear();
    }

    pub(crate) fn of(&self, job: JobId) -> Option<&Moments> {
        self.moments.get(&job)
    }
}

fn moments(foreseen: BTreeMap<JobId, Foreseen>, at: &Time) -> BTreeMap<JobId, Moments> {
    let of = |foreseen: Foreseen| Moments {
        start: foreseen.start_s.and_then(|seconds| after(at, seconds)),
        end: foreseen.completion_s.and_then(|seconds| after(at, seconds)),
    };
    foreseen.into_iter().map(|(job, foreseen)| (job, of(foreseen))).collect()
}
