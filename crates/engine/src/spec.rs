use pollux_policy::Flexibility;

use crate::Refusal;

/// Longest name of a job, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// More replicas than any job has had; above it a number is a mistake.
const REPLICAS_LIMIT: u32 = 65_536;
/// A job that fails more often than this is not helped by another attempt.
const RETRIES_LIMIT: u32 = 1_000;

/// What a user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct JobSpec {
    /// For people; need not be unique.
    pub name: String,
    /// Replicas asked for; policies that choose sizes take it as a hint.
    pub replicas_requested: u32,
    /// Fewest replicas it can run with.
    pub replicas_min: u32,
    /// Most replicas it may have.
    pub replicas_max: u32,
    /// How it may be moved and resized.
    pub flexibility: Flexibility,
    /// Total batch that its user fixed, for policies that leave it to users; the baseline where nothing is said.
    pub batch_size: Option<u32>,
    /// Higher goes first, where a policy knows priorities. A job below 0 is opportunistic: it uses what others leave.
    pub priority: i32,
    /// How long it is to train, if the user says so.
    pub work: Option<Work>,
    /// Failures after which it is tried again.
    pub retries_max: u32,
}

/// How long a job is to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Work {
    /// Times through its data.
    Epochs(u32),
    /// Steps at the baseline batch.
    BaselineSteps(u64),
}

impl JobSpec {
    /// An elastic job of one to 64 replicas (or as many as requested) with three retries.
    pub fn new(name: &str, replicas_requested: u32) -> Self {
        Self {
            name: name.to_owned(),
            replicas_requested,
            replicas_min: 1,
            replicas_max: replicas_requested.max(64),
            flexibility: Flexibility::Elastic,
            batch_size: None,
            priority: 0,
            work: None,
            retries_max: 3,
        }
    }

    /// Fewest replicas a plan may give it.
    pub fn fewest(&self) -> u32 {
        match self.flexibility {
            Flexibility::Rigid => self.replicas_requested,
            Flexibility::Elastic | Flexibility::NonPreemptible => self.replicas_min,
        }
    }

    /// Most replicas a plan may give it.
    pub(crate) fn most(&self) -> u32 {
        match self.flexibility {
            Flexibility::Rigid => self.replicas_requested,
            Flexibility::Elastic | Flexibility::NonPreemptible => self.replicas_max,
        }
    }

    /// Refuses what no cluster could ever run.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let written = |letter: char| !letter.is_control() && !matches!(letter, '/' | '\\');
        let bytes = self.name.len();
        if !(1..=NAME_BYTES_MAX).contains(&bytes) || self.name.starts_with('.') || !self.name.chars().all(written) {
            return Err(Refusal::Name { bytes, bytes_max: NAME_BYTES_MAX });
        }
        let (min, requested, max) = (self.replicas_min, self.replicas_requested, self.replicas_max);
        if min == 0 || min > requested || requested > max || max > REPLICAS_LIMIT {
            return Err(Refusal::Replicas { min, requested, max, limit: REPLICAS_LIMIT });
        }
        if self.batch_size == Some(0) {
            return Err(Refusal::NoBatch);
        }
        if self.retries_max > RETRIES_LIMIT {
            return Err(Refusal::Retries { retries_max: self.retries_max, limit: RETRIES_LIMIT });
        }
        match self.work {
            Some(Work::Epochs(0) | Work::BaselineSteps(0)) => Err(Refusal::NoWork),
            Some(Work::Epochs(_) | Work::BaselineSteps(_)) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_nothing_is_refused() {
        let empty = JobSpec { batch_size: Some(0), ..JobSpec::new("a", 1) };
        let message = empty.check().unwrap_err().to_string();
        assert_eq!(message, "batch_size 0: accepted are 1 or more samples, or no batch");
        assert_eq!(JobSpec { batch_size: Some(1), ..empty }.check(), Ok(()));
    }
}
