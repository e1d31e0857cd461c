use serde::{Deserialize, Serialize};

/// Body of `POST /v1/checkpoints/prune`: checkpoints of jobs that are over. What is left out is as the server was told at
/// its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct PruneRequest {
    /// Only says what would be deleted.
    pub dry_run: bool,
    /// Deletes those of jobs that have been over for longer.
    pub keep_for_s: Option<u64>,
    /// Of the others, deletes the oldest until they take no more room than this.
    pub keep_bytes: Option<u64>,
}

/// Response to `POST /v1/checkpoints/prune`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PruneReport {
    /// Whether nothing was really deleted.
    pub dry_run: bool,
    /// What was deleted, or would be; the oldest first.
    pub deleted: Vec<JobCheckpoints>,
    /// Room that this frees.
    pub bytes_freed: u64,
    /// What could not be deleted, a line for each.
    pub failures: Vec<String>,
    /// Jobs that are over and whose checkpoints are kept.
    pub jobs_kept: u64,
    /// Room that those take.
    pub bytes_kept: u64,
    /// Room that checkpoints of live jobs take, which are never deleted.
    pub bytes_live: u64,
}

/// What one job has saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobCheckpoints {
    /// Which job.
    pub job: u64,
    /// Room that it takes.
    pub bytes: u64,
    /// Seconds since the job ended, or wrote there last if that was later.
    pub age_s: u64,
}
