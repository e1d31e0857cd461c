use std::fmt;

use pollux_backend::Exit;
use pollux_engine::{Command, Event, JobState, StopReason};
use pollux_policy::JobId;
use serde::{Deserialize, Serialize};

/// Something that happened, as it is kept for people: the text of a line of history, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "happened", rename_all = "snake_case")]
pub enum HistoryEvent {
    /// A job was submitted.
    Submitted {
        /// Its name.
        name: String,
    },
    /// A group, or additions to one, were ordered.
    Launched {
        /// How many replicas.
        replicas: u32,
        /// On how many nodes.
        nodes: usize,
    },
    /// A group is to become another.
    Resized {
        /// Replicas that stay.
        kept: u32,
        /// Replicas that leave.
        removed: u32,
        /// Replicas that come.
        added: u32,
    },
    /// All of a group trains.
    Ready {
        /// Seconds that the training stood still, if it told.
        pause_s: Option<f64>,
    },
    /// All of a group runs, and nothing of it has said a word.
    Silent,
    /// A group was told to leave.
    Stopped {
        /// How many replicas.
        replicas: u32,
        /// What for.
        why: StopReason,
    },
    /// A replica ended.
    Exited {
        /// Which.
        replica: u64,
        /// How.
        exit: Exit,
    },
    /// A replica could not be started.
    NotStarted {
        /// Which.
        replica: u64,
        /// One line that says why.
        reason: String,
    },
    /// A job is over, and nothing of it runs any more.
    Ended {
        /// How it ended.
        phase: JobState,
    },
    /// A user set a job aside.
    Paused,
    /// A user wants it to go on.
    Resumed,
    /// A user ended it.
    Cancelled,
    /// A node came up.
    NodeJoined {
        /// Its name.
        node: String,
    },
    /// A node is gone.
    NodeLost {
        /// Its name.
        node: String,
    },
    /// A node is not used any more, because its machine has become another.
    NodeRetired {
        /// Its name.
        node: String,
    },
    /// A node does not answer.
    NodeUnreachable {
        /// Its name.
        node: String,
    },
    /// A node answers again.
    NodeReachable {
        /// Its name.
        node: String,
    },
    /// A replica cannot run yet.
    Pending {
        /// Which.
        replica: u64,
        /// What it waits for.
        reason: String,
    },
    /// A user wants a node to be emptied.
    NodeDrained {
        /// Its name.
        node: String,
    },
    /// A user wants a node to be used again.
    NodeUndrained {
        /// Its name.
        node: String,
    },
    /// The last record of the journal made no sense when a scheduler began: it was set aside.
    Damaged {
        /// Its number.
        record: u64,
    },
    /// What a policy remembered was of no use when a scheduler began: another policy follows it, or it was written by
    /// another version.
    PolicyForgot {
        /// Its name.
        policy: String,
    },
    /// A policy made a plan that could not be used.
    PlanRejected {
        /// What is wrong with it.
        error: String,
    },
}

impl fmt::Display for HistoryEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submitted { name } => write!(f, "{name} was submitted"),
            Self::Launched { replicas, nodes } => {
                let nodes = u32::try_from(*nodes).unwrap_or(u32::MAX);
                write!(f, "{} started on {}", counted(*replicas, "replica"), counted(nodes, "node"))
            }
            Self::Resized { kept, removed, added } => {
                write!(f, "resized from {} to {}", kept + removed, counted(kept + added, "replica"))
            }
            Self::Ready { pause_s: None } => write!(f, "trains"),
            Self::Ready { pause_s: Some(pause_s) } => write!(f, "trains on, after a pause of {pause_s:.2} s"),
            Self::Silent => write!(f, "runs without a word, and is left alone"),
            Self::Stopped { replicas, why } => {
                let why = match why {
                    StopReason::Preempted => "others make better use of the GPUs",
                    StopReason::Moved => "it goes on elsewhere",
                    StopReason::Resized => "it goes on without them",
                    StopReason::Paused => "its user paused it",
                    StopReason::Cancelled => "its user cancelled it",
                    StopReason::Succeeded => "it is done",
                    StopReason::TimeLimit => "it reached its time limit",
                    StopReason::Failed => "one of them failed",
                    StopReason::NodeLost => "a node was lost",
                };
                write!(f, "{} told to leave: {why}", counted(*replicas, "replica"))
            }
            Self::Exited { replica, exit } => write!(f, "replica {replica} ended: {exit}"),
            Self::NotStarted { replica, reason } => write!(f, "replica {replica} could not be started: {reason}"),
            Self::Ended { phase } => write!(f, "{phase}"),
            Self::Paused => write!(f, "paused by its user"),
            Self::Resumed => write!(f, "resumed by its user"),
            Self::Cancelled => write!(f, "cancelled by its user"),
            Self::NodeJoined { node } => write!(f, "node {node} is up"),
            Self::NodeLost { node } => write!(f, "node {node} is gone"),
            Self::NodeRetired { node } => {
                write!(f, "node {node} is not used any more: its machine has changed, what runs there is told to leave")
            }
            Self::NodeUnreachable { node } => write!(f, "node {node} does not answer; what it runs is kept"),
            Self::NodeReachable { node } => write!(f, "node {node} answers again"),
            Self::Pending { replica, reason } => write!(f, "replica {replica} cannot run yet: {reason}"),
            Self::NodeDrained { node } => write!(f, "node {node} is being emptied"),
            Self::NodeUndrained { node } => write!(f, "node {node} is used again"),
            Self::Damaged { record } => {
                write!(f, "record {record} of the journal was damaged and is set aside; all jobs are there")
            }
            Self::PolicyForgot { policy } => {
                write!(f, "what the policy {policy} remembered cannot be used, and is dropped")
            }
            Self::PlanRejected { error } => write!(f, "a plan could not be used: {error}"),
        }
    }
}

/// A number of things.
pub(crate) fn counted(number: u32, thing: &str) -> String {
    if number == 1 { format!("{number} {thing}") } else { format!("{number} {thing}s") }
}

impl HistoryEvent {
    /// What an event that the engine took in is worth remembering as, `name` being that of the node in it.
    pub(crate) fn of_event(event: &Event, name: &str) -> Option<(Option<JobId>, Self)> {
        let node = || name.to_owned();
        Some(match event {
            Event::GroupReady { job, pause_s, .. } => (Some(*job), Self::Ready { pause_s: *pause_s }),
            Event::GroupSilent { job, .. } => (Some(*job), Self::Silent),
            Event::Cancel { job } => (Some(*job), Self::Cancelled),
            Event::Pause { job } => (Some(*job), Self::Paused),
            Event::Resume { job } => (Some(*job), Self::Resumed),
            Event::NodeJoined { .. } => (None, Self::NodeJoined { node: node() }),
            Event::NodeLost { .. } => (None, Self::NodeLost { node: node() }),
            Event::NodeRetired { .. } => (None, Self::NodeRetired { node: node() }),
            Event::NodeUnreachable { .. } => (None, Self::NodeUnreachable { node: node() }),
            Event::NodeReachable { .. } => (None, Self::NodeReachable { node: node() }),
            Event::NodeDrain { .. } => (None, Self::NodeDrained { node: node() }),
            Event::NodeUndrain { .. } => (None, Self::NodeUndrained { node: node() }),
            // They come too often, or are told otherwise.
            Event::JobSubmitted { .. }
            | Event::Report { .. }
            | Event::OracleSpoke { .. }
            | Event::GroupPending { .. }
            | Event::GroupPlaced { .. }
            | Event::NodeResources { .. }
            | Event::ReplicasReleased { .. }
            | Event::JobSucceeded { .. }
            | Event::ReplicaFailed { .. }
            | Event::LaunchFailed { .. }
            | Event::Tick => return None,
        })
    }

    /// What a command of the engine is worth remembering as.
    pub(crate) fn of_command(command: &Command) -> Option<(Option<JobId>, Self)> {
        Some(match command {
            Command::Launch { job, allocation, .. } => {
                let (replicas, nodes) = (allocation.replicas(), allocation.iter().len());
                (Some(*job), Self::Launched { replicas, nodes })
            }
            Command::Resize { job, keep, remove, add, .. } => {
                let [kept, removed, added] = [keep, remove, add].map(pollux_policy::Allocation::replicas);
                (Some(*job), Self::Resized { kept, removed, added })
            }
            Command::Stop { job, allocation, why, .. } => {
                (Some(*job), Self::Stopped { replicas: allocation.replicas(), why: *why })
            }
            Command::PlanRejected { error } => (None, Self::PlanRejected { error: error.to_string() }),
            Command::Refused(_) => return None,
        })
    }
}
