//! A queue of allocations, as it is kept.

use pollux_api::AllocationQueueSpec;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::arguments::{self, ArgumentError};

const NAME_BYTES_MAX: usize = 40;
/// Most nodes of one allocation, and allocations that wait at once.
const NODES_MAX: u32 = 1_024;
const BACKLOG_MAX: u32 = 100;
/// Nobody asks for less: starting takes a good part of it.
const TIME_MIN_S: u64 = 120;
/// An agent ends by force what still runs half a minute before its end: jobs are to leave by themselves before that.
const DRAIN_MIN_S: u64 = 60;
const TIME_MAX_S: u64 = 365 * 24 * 3_600;
const HAPPENINGS_MAX: usize = 200;
const WAITS_MAX: usize = 10;
/// Allocations that are over, of which what they printed is kept.
const ENDED_MAX: usize = 20;

/// A queue that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A name that is no name.
    #[error("queue {0:?}: expected a name of 1 to {NAME_BYTES_MAX} letters, digits, - or _")]
    Name(String),
    /// A number out of its range.
    #[error("{what} {value}: expected {min} to {max}")]
    Range {
        /// Which.
        what: &'static str,
        /// What was given.
        value: u64,
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A folder that nodes could not find.
    #[error("folder {0:?}: expected an absolute path without %, \\ and control characters")]
    Folder(String),
    /// What nodes would refuse.
    #[error("gpu_type {0:?}: expected 1 to 64 letters, digits, -, _ or .")]
    GpuType(String),
    /// What `sbatch` cannot be told.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
}

/// Refuses a queue that could not work.
pub(crate) fn check(spec: &AllocationQueueSpec) -> Result<(), SpecError> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if !(1..=NAME_BYTES_MAX).contains(&spec.name.len()) || !spec.name.bytes().all(is_letter) {
        return Err(SpecError::Name(spec.name.clone()));
    }
    let per_alloc = u64::from(spec.nodes_per_alloc);
    let ranges = [
        ("time_limit", spec.time_limit_s, TIME_MIN_S, TIME_MAX_S),
        ("nodes_per_alloc", per_alloc, 1, u64::from(NODES_MAX)),
        ("backlog", u64::from(spec.backlog), 1, u64::from(BACKLOG_MAX)),
        ("idle_timeout", spec.idle_timeout_s, 1, TIME_MAX_S),
        ("drain_before", spec.drain_before_s, DRAIN_MIN_S, (spec.time_limit_s / 2).max(DRAIN_MIN_S)),
        ("max_nodes", spec.max_nodes.map_or(per_alloc, u64::from), per_alloc, 1_000_000),
        ("slots", spec.slots.map_or(1, u64::from), 1, 1_024),
    ];
    if let Some((what, value, min, max)) = ranges.into_iter().find(|(_, value, min, max)| !(min..=max).contains(&value))
    {
        return Err(SpecError::Range { what, value, min, max });
    }
    // Slurm puts something in the place of these.
    let is_odd = |it: char| it.is_control() || it == '%' || it == '\\';
    let is_path = |folder: &String| folder.starts_with('/') && !folder.contains(is_odd);
    if let Some(folder) = spec.folder.as_ref().filter(|folder| !is_path(folder)) {
        return Err(SpecError::Folder(folder.clone()));
    }
    let is_type = |name: &String| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        (1..=64).contains(&name.len()) && name.bytes().all(is_letter)
    };
    if let Some(name) = spec.gpu_type.as_ref().filter(|name| !is_type(name)) {
        return Err(SpecError::GpuType(name.clone()));
    }
    Ok(arguments::check(&spec.sbatch)?)
}

/// How far an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// `sbatch` is called, or was: whether Slurm knows of it is found out by its name.
    Asked,
    /// Slurm knows of it, and has no nodes for it yet.
    Waits,
    /// It has nodes.
    Runs,
}

/// One job of Slurm's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Its number among those of this scheduler.
    pub number: u64,
    /// Its name in Slurm.
    pub name: String,
    /// How far it is.
    pub stage: Stage,
    /// When it was asked for.
    pub asked_ms: u64,
    /// Its number in Slurm, once that is known.
    #[serde(default)]
    pub job: Option<u64>,
    /// What Slurm calls its state.
    #[serde(default)]
    pub state: String,
    /// Why it waits, in Slurm's word.
    #[serde(default)]
    pub reason: String,
    /// When Slurm expects it to start, or has started it.
    #[serde(default)]
    pub start_ms: Option<u64>,
    /// When it ends at the latest.
    #[serde(default)]
    pub end_ms: Option<u64>,
    /// The nodes that it has, in Slurm's words.
    #[serde(default)]
    pub hosts: String,
    /// Whether any of its agents has joined.
    #[serde(default)]
    pub has_joined: bool,
    /// Whether `sbatch` has ended, so that a look tells for sure whether Slurm knows of it.
    #[serde(default)]
    pub is_settled: bool,
    /// Since when it is to end, and why.
    #[serde(default)]
    pub given_up: Option<Happening>,
}

/// Something that became of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happening {
    /// When.
    pub at_ms: u64,
    /// What, as a sentence.
    pub text: String,
}

/// An allocation that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Its name in Slurm.
    pub name: String,
    /// Its number there.
    pub job: u64,
}

/// A queue and all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// What its allocations are like.
    pub spec: AllocationQueueSpec,
    /// Whether nothing more is to be asked for.
    #[serde(default)]
    pub is_paused: bool,
    /// Whether it goes with its last allocation.
    #[serde(default)]
    pub is_removed: bool,
    /// Why nothing is asked for until somebody resumes it.
    #[serde(default)]
    pub stopped: Option<String>,
    /// Failures of `sbatch` in a row.
    #[serde(default)]
    pub refusals: u32,
    /// Allocations in a row that ended before an agent had joined.
    #[serde(default)]
    pub misses: u32,
    /// Nothing is asked for before.
    #[serde(default)]
    pub not_before_ms: u64,
    /// GPUs of its nodes, as far as any has joined.
    #[serde(default)]
    pub gpus_seen: Option<u32>,
    /// Their type.
    #[serde(default)]
    pub type_seen: Option<String>,
    /// How long allocations have waited lately, in seconds.
    #[serde(default)]
    pub waits_s: Vec<u64>,
    /// What it has.
    #[serde(default)]
    pub allocations: Vec<Allocation>,
    /// What became of it lately, the oldest first.
    #[serde(default)]
    pub happenings: Vec<Happening>,
    /// Allocations that are over, the oldest first.
    #[serde(default)]
    pub ended: Vec<Ended>,
    /// Since when its waiting allocations are not wanted.
    #[serde(default)]
    pub unwanted_since_ms: Option<u64>,
    /// Why it asks for what it asks for, as a sentence.
    #[serde(skip)]
    pub standing: String,
}

impl Queue {
    pub(crate) fn new(spec: AllocationQueueSpec) -> Self {
        Self {
            spec,
            is_paused: false,
            is_removed: false,
            stopped: None,
            refusals: 0,
            misses: 0,
            not_before_ms: 0,
            gpus_seen: None,
            type_seen: None,
            waits_s: Vec::new(),
            allocations: Vec::new(),
            happenings: Vec::new(),
            ended: Vec::new(),
            unwanted_since_ms: None,
            standing: String::new(),
        }
    }

    /// GPUs of each node: as they joined, or as was said.
    pub fn gpus_per_node(&self) -> u32 {
        self.gpus_seen.or(self.spec.slots).or_else(|| arguments::gpus_per_node(&self.spec.sbatch)).unwrap_or(1)
    }

    /// What the GPUs are called, as far as anybody knows.
    pub fn gpu_type(&self) -> Option<&str> {
        self.spec.gpu_type.as_deref().or(self.type_seen.as_deref())
    }

    /// Allocations that are asked for and have no nodes yet.
    pub fn waiting(&self) -> impl Iterator<Item = &Allocation> {
        self.allocations.iter().filter(|it| it.stage != Stage::Runs && it.given_up.is_none())
    }

    /// Nodes of all allocations.
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.allocations.len()).unwrap_or(u32::MAX).saturating_mul(self.spec.nodes_per_alloc)
    }

    /// How long an allocation waits, in seconds, by those of lately.
    pub fn usual_wait_s(&self) -> u64 {
        let count = u64::try_from(self.waits_s.len()).unwrap_or(1);
        self.waits_s.iter().sum::<u64>().checked_div(count).unwrap_or(0)
    }

    pub(crate) fn has_waited(&mut self, wait_s: u64) {
        self.waits_s.push(wait_s);
        let excess = self.waits_s.len().saturating_sub(WAITS_MAX);
        self.waits_s.drain(..excess);
    }

    /// An allocation is over; returns those of which nothing is kept any more.
    pub(crate) fn has_ended(&mut self, ended: Ended) -> Vec<Ended> {
        self.ended.push(ended);
        let excess = self.ended.len().saturating_sub(ENDED_MAX);
        self.ended.drain(..excess).collect()
    }

    pub(crate) fn note(&mut self, at_ms: u64, text: String) {
        tracing::info!(queue = self.spec.name, "{text}");
        self.happenings.push(Happening { at_ms, text });
        let excess = self.happenings.len().saturating_sub(HAPPENINGS_MAX);
        self.happenings.drain(..excess);
    }
}

impl Allocation {
    /// What machines of this allocation are called, but for the number of the node at the end.
    pub fn machine_prefix(&self, queue: &str) -> Option<String> {
        self.job.map(|job| format!("{queue}-{job}-"))
    }

    /// Whether a machine is of this allocation.
    pub fn has_machine(&self, queue: &str, machine: &str) -> bool {
        let rest = self.machine_prefix(queue).and_then(|prefix| machine.strip_prefix(&prefix).map(str::to_owned));
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    }

    /// How it is called in sentences.
    pub fn label(&self) -> String {
        self.job.map_or_else(|| format!("allocation {}", self.name), |job| format!("Slurm job {job}"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn spec(name: &str) -> AllocationQueueSpec {
        AllocationQueueSpec {
            name: name.to_owned(),
            time_limit_s: 8 * 3_600,
            nodes_per_alloc: 1,
            backlog: 2,
            max_nodes: Some(4),
            idle_timeout_s: 600,
            drain_before_s: 600,
            gpu_type: None,
            slots: None,
            folder: None,
            sbatch: vec!["--gres=gpu:4".to_owned()],
        }
    }

    #[test]
    fn queues_that_could_not_work_are_refused_with_what_was_read() {
        let refusal = |spec: AllocationQueueSpec| check(&spec).unwrap_err().to_string();
        assert_eq!(check(&spec("a100")), Ok(()));
        assert_eq!(refusal(spec("a 100")), "queue \"a 100\": expected a name of 1 to 40 letters, digits, - or _");
        assert_eq!(
            refusal(AllocationQueueSpec { drain_before_s: 600, time_limit_s: 900, ..spec("a") }),
            "drain_before 600: expected 60 to 450"
        );
        assert_eq!(
            refusal(AllocationQueueSpec { nodes_per_alloc: 8, ..spec("a") }),
            "max_nodes 4: expected 8 to 1000000"
        );
        assert_eq!(
            refusal(AllocationQueueSpec { folder: Some("slurm".to_owned()), ..spec("a") }),
            "folder \"slurm\": expected an absolute path without %, \\ and control characters"
        );
        assert!(
            refusal(AllocationQueueSpec { sbatch: vec!["--array=1-4".to_owned()], ..spec("a") })
                .starts_with("--array=1-4 cannot")
        );
    }

    #[test]
    fn machines_belong_to_the_allocation_whose_job_they_name() {
        let mut allocation = Allocation {
            number: 1,
            name: "pollux-ab-a-1".to_owned(),
            stage: Stage::Runs,
            asked_ms: 0,
            job: None,
            state: String::new(),
            reason: String::new(),
            start_ms: None,
            end_ms: None,
            hosts: String::new(),
            has_joined: false,
            is_settled: true,
            given_up: None,
        };
        assert!(!allocation.has_machine("a", "a-12-0"));
        allocation.job = Some(12);
        let of = |machine| allocation.has_machine("a", machine);
        assert_eq!(
            [of("a-12-0"), of("a-12-10"), of("a-120-1"), of("a-12-"), of("a-12-x")],
            [true, true, false, false, false]
        );
    }
}
