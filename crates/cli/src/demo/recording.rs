use std::collections::BTreeMap;

use pollux_api::Job;
use pollux_job::Phase;

/// What was seen of a cluster.
#[derive(Debug, Default)]
pub(super) struct Recording {
    /// By number, which is the order of submission.
    tracks: BTreeMap<u64, Track>,
    /// When it was looked at, and goodput of all jobs together then.
    looks: Vec<(f64, f64)>,
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
        self.looks.push((at_s, jobs.iter().filter_map(|job| job.goodput).sum()));
        for job in jobs {
            let moment = Moment {
                at_s,
                replicas: job.replicas,
                batch_size: job.batch_size,
                goodput: job.goodput.unwrap_or(0.0),
            };
            let track = self.tracks.entry(job.id).or_insert_with(|| Track { job: job.clone(), moments: Vec::new() });
            if job.ended_ms.is_none() {
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
        // An empty sum would be -0.
        self.tracks.values().filter_map(|track| track.job.goodput).fold(0.0, |sum, goodput| sum + goodput)
    }

    /// Jobs that are over.
    pub(super) fn ended(&self) -> usize {
        self.tracks.values().filter(|track| track.job.ended_ms.is_some()).count()
    }

    /// Goodput of all jobs together on average, until the last of them ended.
    pub(super) fn mean_goodput(&self) -> f64 {
        let ends = self.tracks.values().filter_map(|track| track.moments.last());
        let end_s = ends.map(|moment| moment.at_s).fold(0.0, f64::max);
        let looks: Vec<f64> =
            self.looks.iter().filter(|(at_s, _)| *at_s <= end_s).map(|&(_, goodput)| goodput).collect();
        mean(looks.into_iter())
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

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A job that was submitted after a second; other fields are what `changes` says.
    pub(in super::super) fn job(id: u64, changes: &serde_json::Value) -> Job {
        let mut job = json!({
            "id": id, "name": format!("job-{id}"), "phase": "running", "phase_since_ms": 0, "submitted_ms": 1_000,
            "replicas": 1, "nodes": 1, "attained_gpu_s": 0.0, "queued_s": 0.0, "restarts": 0, "retries": 0,
        });
        let fields = changes.as_object().unwrap().clone();
        job.as_object_mut().unwrap().extend(fields);
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn what_was_seen_is_summed_up_until_the_last_job_ended() {
        let mut recording = Recording::default();
        let ended = json!({"phase": "succeeded", "ended_ms": 9_000, "replicas": 0});
        recording.add(0.0, vec![job(1, &json!({"goodput": 10.0, "batch_size": 64, "replicas": 2}))]);
        recording.add(
            1.0,
            vec![
                job(1, &json!({"goodput": 20.0, "batch_size": 128, "replicas": 4})),
                job(2, &json!({"goodput": 6.0, "batch_size": 32})),
            ],
        );
        recording.add(2.0, vec![job(1, &ended), job(2, &json!({"batch_size": 32}))]);
        assert!(!recording.is_over());
        recording.add(3.0, vec![job(1, &ended), job(2, &json!({"phase": "failed", "ended_ms": 9_500}))]);
        recording.add(4.0, vec![job(1, &ended), job(2, &json!({"phase": "failed", "ended_ms": 9_500}))]);
        assert!(recording.is_over());
        let [first, second] = recording.tracks().collect::<Vec<_>>()[..] else { panic!("two jobs") };
        assert_eq!((first.completion_s(), second.completion_s()), (Some(8.0), None));
        assert_eq!((first.mean_goodput(), second.mean_goodput()), (15.0, 3.0));
        assert_eq!((first.replicas_over_time(2), first.batches()), (vec![2, 4], vec![64, 128]));
        assert_eq!(recording.mean_goodput(), 12.0, "three looks, and none after the last end");
    }
}
