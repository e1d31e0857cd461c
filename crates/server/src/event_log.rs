//! What the scheduler's log says of events, commands and observations: each once, with its job, node, replica and revision.

use pollux_backend::{Exit, Observation, ReplicaId};
use pollux_engine::{Command, Event, Refusal};
use tracing::{debug, info, trace, warn};

use crate::fleet::Replica;

/// Something that the engine took in; `node` is the name of the node in it. What follows from an observation or comes
/// often is told to those who look closely.
pub(crate) fn event(event: &Event, node: &str) {
    match event {
        Event::JobSubmitted { job, spec } => info!(job = job.0, name = spec.name, "job submitted"),
        Event::Cancel { job } => info!(job = job.0, "job cancelled"),
        Event::Pause { job } => info!(job = job.0, "job paused"),
        Event::Resume { job } => info!(job = job.0, "job resumed"),
        Event::JobSucceeded { job, revision } => {
            info!(job = job.0, revision = revision.0, "job has trained to its end");
        }
        Event::GroupReady { job, revision, pause_s } => {
            info!(job = job.0, revision = revision.0, pause_s, "group trains");
        }
        Event::GroupSilent { job, revision } => {
            info!(job = job.0, revision = revision.0, "group does not report to Pollux");
        }
        Event::GroupPending { job, revision } => debug!(job = job.0, revision = revision.0, "group waits to be placed"),
        Event::GroupPlaced { job, revision } => debug!(job = job.0, revision = revision.0, "group is placed"),
        Event::NodeJoined { gpus, .. } => info!(node, gpus, "node joined"),
        Event::NodeResources { cpus, memory, .. } => info!(node, cpus, memory, "node has other CPUs or memory"),
        Event::NodeLost { .. } => warn!(node, "node lost"),
        Event::NodeRetired { .. } => warn!(node, "node retired: its machine has changed, what runs there has to leave"),
        Event::NodeUnreachable { .. } => warn!(node, "node does not answer; what it runs is kept"),
        Event::NodeReachable { .. } => info!(node, "node answers again"),
        Event::NodeEnds { end: Some(end), .. } => {
            info!(node, drains_at = end.drains_at.0, ends_at = end.ends_at.map(|at| at.0), "node has an end");
        }
        Event::NodeEnds { end: None, .. } => info!(node, "node has no end any more"),
        Event::NodeDrain { .. } => info!(node, "node is drained"),
        Event::NodeUndrain { .. } => info!(node, "node is used again"),
        Event::ReplicaFailed { job, revision, kind, .. } => {
            debug!(job = job.0, revision = revision.0, ?kind, "replica failed");
        }
        Event::LaunchFailed { job, revision, kind, .. } => {
            debug!(job = job.0, revision = revision.0, ?kind, "launch failed");
        }
        Event::ReplicasReleased { job, revision, allocation } => {
            debug!(job = job.0, revision = revision.0, replicas = allocation.replicas(), "replicas released");
        }
        Event::Report { job, revision, .. } => debug!(job = job.0, revision = revision.0, "agent reported"),
        Event::OracleSet { job, .. } => debug!(job = job.0, "oracle set"),
        Event::Tick => trace!("tick"),
    }
}

/// An event that changed nothing. Who asked for it is told why; of what was seen nobody else hears.
pub(crate) fn refused_event(refusal: &Refusal) {
    debug!(reason = %refusal, "event refused");
}

/// Something that the engine wants done.
pub(crate) fn command(command: &Command) {
    match command {
        Command::Launch { job, revision, allocation, .. } => {
            let (replicas, nodes) = (allocation.replicas(), allocation.iter().len());
            info!(job = job.0, revision = revision.0, replicas, nodes, "launch");
        }
        Command::Resize { job, revision, keep, remove, add } => {
            let [kept, removed, added] = [keep, remove, add].map(pollux_policy::Allocation::replicas);
            info!(job = job.0, revision = revision.0, kept, removed, added, "resize");
        }
        Command::Stop { job, revision, allocation, why } => {
            info!(job = job.0, revision = revision.0, replicas = allocation.replicas(), ?why, "stop");
        }
        Command::PlanRejected { error } => warn!(%error, "plan rejected"),
        Command::Refused(refusal) => refused_event(refusal),
    }
}

/// Something that the backend saw, perhaps again. What is told again and again is for those who look closely: what it
/// changes is told of as an event.
pub(crate) fn observation<'a>(observation: &Observation, live: impl Fn(ReplicaId) -> Option<&'a Replica>) {
    let job = |replica: ReplicaId| live(replica).map(|replica| replica.job.0);
    match observation {
        Observation::NodeUp(node) => debug!(node = node.name, gpus = node.gpus, gpu_type = node.gpu_type, "node seen"),
        Observation::NodeUnreachable { node } => debug!(node, "node cannot be reached"),
        Observation::NodeGone { node } => debug!(node, "node gone"),
        Observation::Superseded { by } => debug!(epoch = by.0, "an order is refused for that of another scheduler"),
        &Observation::Pending { replica, ref reason } => {
            debug!(job = job(replica), replica = replica.0, reason, "replica is pending");
        }
        &Observation::Started { replica } => debug!(job = job(replica), replica = replica.0, "replica started"),
        Observation::StartFailed { replica, .. } | Observation::Exited { replica, .. } if job(*replica).is_none() => {
            debug!(replica = replica.0, "the end of a replica is told again");
        }
        &Observation::StartFailed { replica, ref reason, retryable } => {
            warn!(job = job(replica), replica = replica.0, reason, retryable, "replica could not be started");
        }
        &Observation::Exited { replica, exit: exit @ (Exit::Code(0) | Exit::Signal(_)) } => {
            info!(job = job(replica), replica = replica.0, %exit, "replica ended");
        }
        &Observation::Exited { replica, exit } => {
            warn!(job = job(replica), replica = replica.0, %exit, "replica ended");
        }
    }
}
