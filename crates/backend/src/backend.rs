use std::sync::Arc;
use std::time::Duration;

use crate::{Checkpoints, Epoch, LogReader, ReplicaId, ReplicaOrder};

/// A place where replicas run. No call waits for what it asks for: what becomes of it is told to the [`Observer`] that
/// the backend was made with, which also hears of the nodes.
///
/// Every order carries the [`Epoch`] of the scheduler that gives it. One that is lower than the highest ever seen is
/// not carried out, and answered by [`Observation::Superseded`]: another scheduler has taken over. The highest epoch
/// survives a restart of the backend, and is kept before the order is carried out: where that cannot be done or checked,
/// nothing is.
///
/// [`Observer`]: crate::Observer
/// [`Observation::Superseded`]: crate::Observation::Superseded
pub trait Backend: Send {
    /// Takes over after a restart of the server; the first call of every scheduler.
    ///
    /// From here on every node that the backend has is observed, each in its own time: as [`NodeUp`] where it answers, as
    /// [`NodeUnreachable`] where it does not, as [`NodeGone`] where it has left. Of a node that is not mentioned nothing
    /// is known: it may be there, with everything that ran on it.
    ///
    /// The `known` replicas were ordered before and not seen to end. Each of them is observed in its own time, too: as
    /// [`Started`] if it runs, as [`Pending`] if it was accepted and waits, or its end ([`Exited`], [`StartFailed`]); one
    /// that nobody has heard of is [`Exit::Lost`]. What is on a node that does not answer is observed when it answers.
    ///
    /// Replicas that run or wait and are not known are stopped.
    ///
    /// [`NodeUp`]: crate::Observation::NodeUp
    /// [`NodeUnreachable`]: crate::Observation::NodeUnreachable
    /// [`NodeGone`]: crate::Observation::NodeGone
    /// [`Started`]: crate::Observation::Started
    /// [`Pending`]: crate::Observation::Pending
    /// [`Exited`]: crate::Observation::Exited
    /// [`StartFailed`]: crate::Observation::StartFailed
    /// [`Exit::Lost`]: crate::Exit::Lost
    fn adopt(&mut self, epoch: Epoch, known: &[ReplicaId]);

    /// Starts a replica, once its node has free what it asks for: GPUs, those of its host if it shares them, CPUs and
    /// memory where they are counted. One that finds too little fails and may be tried again, or waits. One that was
    /// started before is not started again; if it has ended, that is observed again.
    ///
    /// On a node that does not answer it waits or fails.
    ///
    /// Those of a [bundle](ReplicaOrder::bundle) may wait for each other's orders, and the GPUs of each may be taken until
    /// all of them have ended. Each has its own variables, GPUs, log and end.
    fn start(&mut self, order: &ReplicaOrder);

    /// Asks a replica to end, and ends it with everything that it started once the `grace` is over. Asking again may
    /// shorten the grace, never extend it; of a replica that is gone the end is observed again. One that waits never
    /// runs. Where its node does not answer, the replica is told once it does.
    fn stop(&mut self, epoch: Epoch, replica: ReplicaId, grace: Duration);

    /// Deletes all that is kept of a replica that has ended; one that has not is left alone. Of a bundle it may be kept until
    /// all of it is forgotten.
    fn forget(&mut self, epoch: Epoch, replica: ReplicaId);

    /// Deletes all that is kept of replicas that have ended, but for these.
    fn keep_only(&mut self, epoch: Epoch, replicas: &[ReplicaId]);

    /// What reads the logs of replicas, for any thread.
    fn logs(&self) -> Arc<dyn LogReader>;

    /// Where jobs keep their checkpoints, for any thread.
    fn checkpoints(&self) -> Arc<dyn Checkpoints>;
}
