use std::time::{Duration, Instant};

use pollux_api as api;
use pollux_sim::{Change, Cut, Forecast, Unforeseen, forecast};

use super::{Question, WhatIfError};
use crate::explaining::duration;
use crate::happening::counted;

/// What each of the two futures may take.
const PATIENCE: Duration = Duration::from_secs(4);

impl Question {
    /// Plays both futures. It takes its time, up to a few seconds, unless it is told to give up.
    pub(crate) fn answer(self, gives_up: &dyn Fn() -> bool) -> Result<api::WhatIf, WhatIfError> {
        let play = |changes: &[Change]| {
            let deadline = Instant::now() + PATIENCE;
            let mut go_on = || Instant::now() < deadline && !gives_up();
            let forecast = forecast(&self.cluster, changes, &mut go_on);
            forecast.map_err(|error| WhatIfError::Unforeseeable(error.to_string()))
        };
        let before = play(&[])?;
        let after = if self.changes.is_empty() { before.clone() } else { play(&self.changes)? };
        Ok(self.told(&before, &after))
    }

    fn told(self, before: &Forecast, after: &Forecast) -> api::WhatIf {
        let policy = self.cluster.policy.name();
        let changed = self.changes.iter().rev().find_map(|change| match change {
            Change::Policy(policy) => Some(policy.name()),
            // The others leave it to the one that there is.
            _ => None,
        });
        let jobs = self.jobs.into_iter().enumerate().map(|(idx, job)| api::JobForecast {
            id: job.id,
            name: job.name,
            phase: job.phase,
            replicas: job.replicas,
            before: completion(before, idx),
            after: completion(after, idx),
        });
        let both = |before: f64, after: f64| api::BeforeAfter { before, after };
        api::WhatIf {
            now_ms: self.cluster.now.0,
            policy: api::BeforeAfter { before: policy.to_owned(), after: changed.unwrap_or(policy).to_owned() },
            jobs: jobs.collect(),
            average_completion_s: average(before, after).map(|(before, after)| both(before, after)),
            makespan_s: api::BeforeAfter { before: last(before), after: last(after) },
            gpu_utilisation: api::BeforeAfter { before: before.gpu_utilisation, after: after.gpu_utilisation },
            horizon_s: both(before.horizon_s, after.horizon_s),
            notes: notes(before, after),
        }
    }
}

/// A job that is only in the other future does not exist in this one.
fn completion(forecast: &Forecast, idx: usize) -> api::Completion {
    match forecast.jobs.get(idx).map(|job| job.completion_s) {
        Some(Ok(seconds)) => api::Completion { completion_s: Some(seconds), why: None },
        Some(Err(unforeseen)) => api::Completion { completion_s: None, why: Some(unforeseen.to_string()) },
        None => api::Completion { completion_s: None, why: Some("it is not submitted".to_owned()) },
    }
}

/// Over jobs that are complete in both.
fn average(before: &Forecast, after: &Forecast) -> Option<(f64, f64)> {
    let pairs = before.jobs.iter().zip(&after.jobs);
    let known: Vec<(f64, f64)> =
        pairs.filter_map(|(before, after)| before.completion_s.ok().zip(after.completion_s.ok())).collect();
    let mean = |side: fn(&(f64, f64)) -> f64| known.iter().map(side).sum::<f64>() / known.len() as f64;
    (!known.is_empty()).then(|| (mean(|pair| pair.0), mean(|pair| pair.1)))
}

fn last(forecast: &Forecast) -> Option<f64> {
    forecast.jobs.iter().filter_map(|job| job.completion_s.ok()).max_by(f64::total_cmp)
}

fn notes(before: &Forecast, after: &Forecast) -> Vec<String> {
    let jobs = |wanted: &[Unforeseen]| {
        let is_wanted = |completion: Result<f64, Unforeseen>| completion.is_err_and(|why| wanted.contains(&why));
        let count = after.jobs.iter().filter(|job| is_wanted(job.completion_s)).count();
        (count > 0).then(|| counted(u32::try_from(count).unwrap_or(u32::MAX), "job"))
    };
    let mut notes = Vec::new();
    notes.extend(
        jobs(&[Unforeseen::NoReport, Unforeseen::NoModel])
            .map(|jobs| format!("Too little is known of {jobs}: whatever GPUs such a job gets, it is taken to keep.")),
    );
    notes.extend(
        jobs(&[Unforeseen::NoWork]).map(|jobs| format!("Nobody has said how long it takes: {jobs} without end.")),
    );
    if [before.cut, after.cut].contains(&Some(Cut::Patience)) {
        notes.push(format!(
            "The next {} and, with the changes, the next {} were simulated: more would have taken longer than {} s.",
            duration(before.horizon_s),
            duration(after.horizon_s),
            PATIENCE.as_secs()
        ));
    }
    if [before.cut, after.cut].contains(&Some(Cut::Horizon)) {
        notes.push("Nothing is foretold beyond a year.".to_owned());
    }
    notes
}
