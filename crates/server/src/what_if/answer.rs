use std::time::{Duration, Instant};

use pollux_api as api;
use pollux_sim::{Change, Cut, Forecast, Unforeseen, forecast};

use super::{Question, WhatIfError};
use crate::explanation::duration;
use crate::history_event::counted;

/// More names than anybody reads.
const NAMES_MAX: usize = 5;
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
            gpus_per_replica: job.gpus_per_replica,
            before: completion(before, idx),
            after: completion(after, idx),
        });
        let jobs: Vec<api::JobForecast> = jobs.collect();
        let known: Vec<(f64, f64)> =
            jobs.iter().filter_map(|job| job.before.completion_s.zip(job.after.completion_s)).collect();
        let sides = |measure: fn(&[f64]) -> Option<f64>| {
            let (before, after): (Vec<f64>, Vec<f64>) = known.iter().copied().unzip();
            api::BeforeAfter { before: measure(&before), after: measure(&after) }
        };
        let average =
            sides(|seconds| (!seconds.is_empty()).then(|| seconds.iter().sum::<f64>() / seconds.len() as f64));
        api::WhatIf {
            now_ms: self.cluster.now.0,
            policy: api::BeforeAfter { before: policy.to_owned(), after: changed.unwrap_or(policy).to_owned() },
            average_completion_s: average
                .before
                .zip(average.after)
                .map(|(before, after)| api::BeforeAfter { before, after }),
            makespan_s: sides(|seconds| seconds.iter().copied().max_by(f64::total_cmp)),
            gpu_utilisation: api::BeforeAfter { before: before.gpu_utilisation, after: after.gpu_utilisation },
            horizon_s: api::BeforeAfter { before: before.horizon_s, after: after.horizon_s },
            notes: lopsided(&jobs).into_iter().chain(notes(before, after)).collect(),
            jobs,
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

/// Jobs that no comparison is about, since they are complete in one future only.
fn lopsided(jobs: &[api::JobForecast]) -> Option<String> {
    let is_lopsided = |job: &&api::JobForecast| job.before.completion_s.is_some() != job.after.completion_s.is_some();
    let mut names: Vec<&str> = jobs.iter().filter(is_lopsided).map(|job| job.name.as_str()).collect();
    let others = names.len().saturating_sub(NAMES_MAX);
    names.truncate(NAMES_MAX);
    let rest = if others > 0 {
        format!(" and {}", counted(u32::try_from(others).unwrap_or(u32::MAX), "other"))
    } else {
        String::new()
    };
    (!names.is_empty()).then(|| format!("Complete in one future only, and not compared: {}{rest}.", names.join(", ")))
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
    notes.extend(jobs(&[Unforeseen::NoWork]).map(|jobs| {
        format!("Nobody has said how long {jobs} would train: without end, as far as others are concerned.")
    }));
    if [before.cut, after.cut].contains(&Some(Cut::Patience)) {
        notes.push(format!(
            "The next {} and, with the changes, the next {} were simulated: more would have taken longer than {} s.",
            duration(before.horizon_s),
            duration(after.horizon_s),
            PATIENCE.as_secs()
        ));
    }
    if [before.cut, after.cut].contains(&Some(Cut::Horizon)) {
        notes.push("Nothing beyond a year is forecast.".to_owned());
    }
    notes
}
