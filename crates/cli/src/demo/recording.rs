use std::collections::BTreeMap;

use pollux_api::{Job, Phase};

/// What was seen of a cluster.
#[derive(Debug, Default)]
pub(super) struct Recording {
    /// By number, which is the order of submission.
    tracks: BTreeMap<u64, Track>,
}

/// What was seen of a job.
#[derive(Debug)]
pub(super) struct Track {
    /// As it was seen last.
    pub(super) job: Job,
    /// At every look until its end.
    pub(super) moments: Vec<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moment {
    pub(super) at_s: f64,
    pub(super) replicas: u32,
    pub(super) batch_size: Option<u64>,
    pub(super) goodput: f64,
}

impl Recording {
    /// Adds what was seen at a moment.
    pub(super) fn add(&mut self, at_s: f64, jobs: Vec<Job>) {
        for job in jobs {
            let moment = Moment {
                at_s,
                replicas: job.replicas,
                batch_size: job.batch_size,
                goodput: job.goodput.unwrap_or(0.0),
            };
            let track = self.tracks.entry(job.id).or_insert_with(|| Track { job: job.clone(), moments: Vec::new() });
            if track.job.ended_ms.is_none() {
                track.moments.push(moment);
            }
            track.job = job;
        }
    }

    pub(super) fn tracks(&self) -> impl ExactSizeIterator<Item = &Track> {
        self.tracks.values()
    }

    /// Whether every job that came is over.
    pub(super) fn is_over(&self) -> bool {
        self.tracks.values().all(|track| track.job.ended_ms.is_some())
    }

    /// Goodput of all jobs together when it was last looked at.
    pub(super) fn goodput(&self) -> f64 {
        self.tracks.values().filter_map(|track| track.job.goodput).sum()
    }

    pub(super) fn replicas(&self) -> u32 {
        self.tracks.values().map(|track| track.job.replicas).sum()
    }
}

impl Track {
    /// Seconds from submission to the end of a job that trained to its end.
    pub(super) fn completion_s(&self) -> Option<f64> {
        let ended_ms = self.job.ended_ms.filter(|_| self.job.phase == Phase::Succeeded)?;
        Some(ended_ms.saturating_sub(self.job.submitted_ms) as f64 / 1000.0)
    }

    /// Its goodput on average, from submission to end.
    pub(super) fn mean_goodput(&self) -> f64 {
        mean(self.moments.iter().map(|moment| moment.goodput))
    }

    /// GPUs in each of so many equal parts of its life; none while it waits.
    pub(super) fn replicas_over_time(&self, parts: usize) -> Vec<u32> {
        let parts = parts.min(self.moments.len());
        let part = |idx: usize| &self.moments[idx * self.moments.len() / parts..(idx + 1) * self.moments.len() / parts];
        // The last of a part: averages of whole GPUs would not be whole.
        (0..parts).map(|idx| part(idx).last().map_or(0, |moment| moment.replicas)).collect()
    }

    /// Its batch sizes, one after another.
    pub(super) fn batches(&self) -> Vec<u64> {
        let mut batches: Vec<u64> = self.moments.iter().filter_map(|moment| moment.batch_size).collect();
        batches.dedup();
        batches
    }
}

pub(super) fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    if count == 0 { 0.0 } else { values.sum::<f64>() / count as f64 }
}
