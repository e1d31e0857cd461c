//! What is kept for people of what happens, and how it is told to them.

use std::fmt;

use pollux_backend::Exit;
use pollux_engine::{Command, Event, StopReason};
use pollux_policy::JobId;
use pollux_store::{HistoryEvent, ReplicaExit};

/// A line of history as people read it.
pub(crate) struct Sentence<'a>(pub(crate) &'a HistoryEvent);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            HistoryEvent::Submitted { name } => write!(f, "{name} was submitted"),
            HistoryEvent::Launched { replicas, nodes } => {
                let nodes = u32::try_from(*nodes).unwrap_or(u32::MAX);
                write!(f, "{} started on {}", counted(*replicas, "replica"), counted(nodes, "node"))
            }
            HistoryEvent::Resized { kept, removed, added } => {
                write!(f, "resized from {} to {}", kept + removed, counted(kept + added, "replica"))
            }
            HistoryEvent::Ready { pause_s: None } => write!(f, "trains"),
            HistoryEvent::Ready { pause_s: Some(pause_s) } => write!(f, "trains on, after a pause of {pause_s:.2} s"),
            HistoryEvent::Silent => write!(f, "running; doesn't report to Pollux, so it won't be resized"),
            HistoryEvent::Stopped { replicas, why } => {
                let why = match why {
                    StopReason::Preempted => "others make better use of the GPUs",
                    StopReason::Moved => "it moves to other nodes",
                    StopReason::Resized => "the job shrinks",
                    StopReason::Paused => "its user paused it",
                    StopReason::Cancelled => "its user cancelled it",
                    StopReason::Succeeded => "the job finished",
                    StopReason::TimeLimit => "it reached its time limit",
                    StopReason::Failed => "a replica failed",
                    StopReason::NodeLost => "a node was lost",
                    StopReason::NodeEnds => "a node of it ends",
                };
                write!(f, "stopping {}: {why}", counted(*replicas, "replica"))
            }
            HistoryEvent::Exited { replica, exit } => write!(f, "replica {replica} ended: {}", self::exit(*exit)),
            HistoryEvent::NotStarted { replica, reason } => {
                write!(f, "replica {replica} could not be started: {reason}")
            }
            HistoryEvent::Ended { phase } => write!(f, "{phase}"),
            HistoryEvent::Paused => write!(f, "paused by its user"),
            HistoryEvent::Resumed => write!(f, "resumed by its user"),
            HistoryEvent::Cancelled => write!(f, "cancelled by its user"),
            HistoryEvent::NodeJoined { node } => write!(f, "node {node} is up"),
            HistoryEvent::NodeLost { node } => write!(f, "node {node} is gone"),
            HistoryEvent::NodeRetired { node } => {
                write!(f, "node {node} is not used any more: its machine has changed; what runs there is being stopped")
            }
            HistoryEvent::NodeUnreachable { node } => write!(f, "node {node} does not answer; what it runs is kept"),
            HistoryEvent::NodeReachable { node } => write!(f, "node {node} answers again"),
            HistoryEvent::Pending { replica, reason } => write!(f, "replica {replica} cannot run yet: {reason}"),
            HistoryEvent::NodeDrained { node } => write!(f, "node {node} is draining"),
            HistoryEvent::NodeUndrained { node } => write!(f, "node {node} is used again"),
            HistoryEvent::Damaged { record } => {
                write!(f, "record {record} of the journal was damaged and is set aside; all jobs are there")
            }
            HistoryEvent::PolicyForgot { policy } => {
                write!(f, "what the policy {policy} remembered cannot be used, and is dropped")
            }
            HistoryEvent::PlanRejected { error } => write!(f, "a plan could not be used: {error}"),
        }
    }
}

/// A number of things.
pub(crate) fn counted(number: u32, thing: &str) -> String {
    if number == 1 { format!("{number} {thing}") } else { format!("{number} {thing}s") }
}

/// How a replica ended, as it is kept.
pub(crate) const fn kept(exit: Exit) -> ReplicaExit {
    match exit {
        Exit::Code(code) => ReplicaExit::Code(code),
        Exit::Signal(signal) => ReplicaExit::Signal(signal),
        Exit::OutOfMemory => ReplicaExit::OutOfMemory,
        Exit::Evicted => ReplicaExit::Evicted,
        Exit::Lost => ReplicaExit::Lost,
    }
}

/// How a replica ended, of what was kept.
pub(crate) const fn exit(exit: ReplicaExit) -> Exit {
    match exit {
        ReplicaExit::Code(code) => Exit::Code(code),
        ReplicaExit::Signal(signal) => Exit::Signal(signal),
        ReplicaExit::OutOfMemory => Exit::OutOfMemory,
        ReplicaExit::Evicted => Exit::Evicted,
        ReplicaExit::Lost => Exit::Lost,
    }
}

/// What an event that the engine took in is worth remembering as, `name` being that of the node in it.
pub(crate) fn of_event(event: &Event, name: &str) -> Option<(Option<JobId>, HistoryEvent)> {
    let node = || name.to_owned();
    Some(match event {
        Event::GroupReady { job, pause_s, .. } => (Some(*job), HistoryEvent::Ready { pause_s: *pause_s }),
        Event::GroupSilent { job, .. } => (Some(*job), HistoryEvent::Silent),
        Event::Cancel { job } => (Some(*job), HistoryEvent::Cancelled),
        Event::Pause { job } => (Some(*job), HistoryEvent::Paused),
        Event::Resume { job } => (Some(*job), HistoryEvent::Resumed),
        Event::NodeJoined { .. } => (None, HistoryEvent::NodeJoined { node: node() }),
        Event::NodeLost { .. } => (None, HistoryEvent::NodeLost { node: node() }),
        Event::NodeRetired { .. } => (None, HistoryEvent::NodeRetired { node: node() }),
        Event::NodeUnreachable { .. } => (None, HistoryEvent::NodeUnreachable { node: node() }),
        Event::NodeReachable { .. } => (None, HistoryEvent::NodeReachable { node: node() }),
        Event::NodeDrain { .. } => (None, HistoryEvent::NodeDrained { node: node() }),
        Event::NodeUndrain { .. } => (None, HistoryEvent::NodeUndrained { node: node() }),
        // They come too often, or are told otherwise.
        Event::JobSubmitted { .. }
        | Event::Report { .. }
        | Event::OracleSet { .. }
        | Event::GroupPending { .. }
        | Event::GroupPlaced { .. }
        | Event::NodeResources { .. }
        | Event::NodeEnds { .. }
        | Event::ReplicasReleased { .. }
        | Event::JobSucceeded { .. }
        | Event::ReplicaFailed { .. }
        | Event::LaunchFailed { .. }
        | Event::Tick => return None,
    })
}

/// What a command of the engine is worth remembering as.
pub(crate) fn of_command(command: &Command) -> Option<(Option<JobId>, HistoryEvent)> {
    Some(match command {
        Command::Launch { job, allocation, .. } => {
            let (replicas, nodes) = (allocation.replicas(), allocation.iter().len());
            (Some(*job), HistoryEvent::Launched { replicas, nodes })
        }
        Command::Resize { job, keep, remove, add, .. } => {
            let [kept, removed, added] = [keep, remove, add].map(pollux_policy::Allocation::replicas);
            (Some(*job), HistoryEvent::Resized { kept, removed, added })
        }
        Command::Stop { job, allocation, why, .. } => {
            (Some(*job), HistoryEvent::Stopped { replicas: allocation.replicas(), why: *why })
        }
        Command::PlanRejected { error } => (None, HistoryEvent::PlanRejected { error: error.to_string() }),
        Command::Refused(_) => return None,
    })
}
