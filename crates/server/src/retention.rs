//! How long checkpoints are kept of jobs that are over. Those of live jobs, paused ones included, are never touched.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pollux_api::{JobCheckpoints, PruneReport};
use pollux_backend::{CheckpointAnswer, SavedCheckpoints};
use pollux_policy::JobId;
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::{Handle, Refused};

/// How long, and how much, is kept of jobs that are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// What is older is deleted.
    pub keep_for: Duration,
    /// Of what is left, the oldest is deleted beyond this many bytes.
    pub keep_bytes: u64,
}

impl Default for Retention {
    /// A week, and 50 GiB.
    fn default() -> Self {
        Self { keep_for: Duration::from_secs(7 * 86_400), keep_bytes: 50 << 30 }
    }
}

/// Deletes what is not to be kept, or only says what that would be.
pub(crate) async fn prune(handle: &Handle, retention: Retention, dry_run: bool) -> Result<PruneReport, Refused> {
    let unreadable = |error: io::Error| Refused::Unreadable(format!("checkpoints cannot be listed: {error}"));
    let saved = answer(|answer| handle.checkpoints.list(answer)).await.map_err(unreadable)?;
    // Looked for after the list was made: who is not live now will never write again.
    let look = handle.look(|cluster| (cluster.live_jobs().collect::<BTreeSet<JobId>>(), cluster.epoch()));
    let (live, epoch) = look.get().await?;
    let (live, over): (Vec<_>, Vec<_>) = saved.into_iter().partition(|saved| live.contains(&saved.job));
    let ended = ended(handle, over).await?;
    let (excess, kept) = retention.divide(ended);
    let sum = |some: &[JobCheckpoints]| some.iter().map(|saved| saved.bytes).sum();
    let mut report = PruneReport {
        dry_run,
        jobs_kept: kept.len() as u64,
        bytes_kept: sum(&kept),
        bytes_live: live.iter().map(|saved| saved.bytes).sum(),
        ..PruneReport::default()
    };
    for saved in excess {
        let outcome = match dry_run {
            true => Ok(saved.bytes),
            false => answer(|answer| handle.checkpoints.delete(epoch, JobId(saved.job), answer)).await,
        };
        match outcome {
            Ok(bytes) => {
                if !dry_run {
                    info!(job = saved.job, bytes, "old checkpoints deleted");
                }
                report.bytes_freed += bytes;
                report.deleted.push(saved);
            }
            Err(error) => {
                warn!(job = saved.job, %error, "old checkpoints cannot be deleted");
                report.failures.push(format!("checkpoints of job {}: {error}", saved.job));
            }
        }
    }
    Ok(report)
}

/// Those of jobs that are known to be over, with their ages. What belongs to no job of ours is left alone.
async fn ended(handle: &Handle, over: Vec<SavedCheckpoints>) -> Result<Vec<JobCheckpoints>, Refused> {
    let now = SystemTime::now();
    let read = handle.read(move |reader| {
        let mut ended = Vec::new();
        for saved in over {
            let row = reader.job(saved.job)?;
            ended.extend(row.and_then(|row| row.ended).map(|row| (saved, row.ended)));
        }
        Ok(ended)
    });
    let age = |(saved, ended): (SavedCheckpoints, pollux_policy::Timestamp)| {
        let last = saved.written.max(UNIX_EPOCH + Duration::from_millis(ended.0));
        let age_s = now.duration_since(last).unwrap_or_default().as_secs();
        JobCheckpoints { job: saved.job.0, bytes: saved.bytes, age_s }
    };
    Ok(read.await?.into_iter().map(age).collect())
}

impl Retention {
    /// What is to go, the oldest first, and what stays.
    fn divide(self, mut saved: Vec<JobCheckpoints>) -> (Vec<JobCheckpoints>, Vec<JobCheckpoints>) {
        // The newest first, and of two that ended together the later one.
        saved.sort_unstable_by_key(|saved| (saved.age_s, std::cmp::Reverse(saved.job)));
        let mut bytes = 0_u64;
        let goes = |saved: &JobCheckpoints| {
            bytes = bytes.saturating_add(saved.bytes);
            saved.age_s >= self.keep_for.as_secs() || bytes > self.keep_bytes
        };
        let first = saved.iter().position(goes).unwrap_or(saved.len());
        let mut excess = saved.split_off(first);
        excess.reverse();
        (excess, saved)
    }
}

/// What a call answers that does not wait.
async fn answer<T: Send + 'static>(ask: impl FnOnce(CheckpointAnswer<T>)) -> io::Result<T> {
    let (sender, answer) = oneshot::channel();
    // Who asked may have gone.
    ask(Box::new(|outcome| drop(sender.send(outcome))));
    answer.await.unwrap_or_else(|_| Err(io::Error::other("the backend has ended")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(job: u64, bytes: u64, age_s: u64) -> JobCheckpoints {
        JobCheckpoints { job, bytes, age_s }
    }

    fn jobs(some: &[JobCheckpoints]) -> Vec<u64> {
        some.iter().map(|saved| saved.job).collect()
    }

    #[test]
    fn what_is_old_goes_and_of_the_rest_the_oldest_until_it_fits() {
        let all = vec![saved(1, 10, 500), saved(2, 10, 50), saved(3, 10, 100), saved(4, 25, 20), saved(5, 0, 99)];
        let divided = |keep_for_s, keep_bytes| {
            let retention = Retention { keep_for: Duration::from_secs(keep_for_s), keep_bytes };
            let (excess, kept) = retention.divide(all.clone());
            (jobs(&excess), jobs(&kept))
        };
        assert_eq!(divided(1_000, 1_000), (vec![], vec![4, 2, 5, 3, 1]));
        assert_eq!(divided(100, 1_000), (vec![1, 3], vec![4, 2, 5]));
        assert_eq!(divided(1_000, 35), (vec![1, 3], vec![4, 2, 5]), "nothing is deleted before what is older");
        assert_eq!(divided(1_000, 24), (vec![1, 3, 5, 2, 4], vec![]));
        assert_eq!(divided(0, 1_000), (vec![1, 3, 5, 2, 4], vec![]));
    }
}
