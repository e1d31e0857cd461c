use std::sync::Arc;
use std::time::Duration;

use crate::{Checkpoints, Epoch, LogReader, ReplicaId, ReplicaOrder};

/// A place where replicas run. No call waits for what it asks for: what becomes of it is told to the [`Observer`] that
/// the backend was made with, which also hears of the nodes.
///
/// Every order carries the [`Epoch`] of the scheduler that gives it. One that is lower than the highest ever seen is
/// not carried out, and answered by [`Observation::Superseded`]: another scheduler has taken over. The highest epoch
/// survives a restart of the backend.
///
/// [`Observer`]: crate::Observer
/// [`Observation::Superseded`]: crate::Observation::Superseded
pub trait Backend: Send {
    /// Takes over after a restart of the server. The `known` replicas were ordered before and not seen to exit: those
    /// that run are adopted, of the others the end is observed. Replicas that run and are not known are stopped.
    fn adopt(&mut self, epoch: Epoch, known: &[ReplicaId]);

    /// Starts a replica. One that was started before is not started again; if it has ended, that is observed again.
    fn start(&mut self, order: &ReplicaOrder);

    /// Asks a replica to end, and ends it with everything that it started once the `grace` is over. Asking again may
    /// shorten the grace, never extend it; of a replica that is gone the end is observed again.
    fn stop(&mut self, epoch: Epoch, replica: ReplicaId, grace: Duration);

    /// Deletes all that is kept of a replica that has ended; one that has not is left alone.
    fn forget(&mut self, epoch: Epoch, replica: ReplicaId);

    /// Deletes all that is kept of replicas that have ended, but for these.
    fn keep_only(&mut self, epoch: Epoch, replicas: &[ReplicaId]);

    /// What reads the logs of replicas, for any thread.
    fn logs(&self) -> Arc<dyn LogReader>;

    /// Where jobs keep their checkpoints, for any thread.
    fn checkpoints(&self) -> Arc<dyn Checkpoints>;
}
