use std::path::PathBuf;
use std::time::Duration;

use crate::{ReplicaId, ReplicaOrder};

/// A place where replicas run. No call waits for what it asks for: what becomes of it is told to the [`Observer`] that
/// the backend was made with, which also hears of the nodes.
///
/// [`Observer`]: crate::Observer
pub trait Backend: Send {
    /// Takes over after a restart of the server. The `known` replicas were ordered before and not seen to exit: those
    /// that run are adopted, of the others the end is observed. Replicas that run and are not known are stopped.
    fn adopt(&mut self, known: &[ReplicaId]);

    /// Starts a replica. One that was started before is not started again; if it has ended, that is observed again.
    fn start(&mut self, order: &ReplicaOrder);

    /// Asks a replica to end, and ends it with everything that it started once the `grace` is over. Asking again may
    /// shorten the grace, never extend it; of a replica that is gone the end is observed again.
    fn stop(&mut self, replica: ReplicaId, grace: Duration);

    /// What a replica has written, oldest first.
    fn log_files(&self, replica: ReplicaId) -> Vec<PathBuf>;

    /// Deletes all that is kept of a replica that has ended; one that has not is left alone.
    fn forget(&mut self, replica: ReplicaId);

    /// Deletes all that is kept of replicas that have ended, but for these.
    fn keep_only(&mut self, replicas: &[ReplicaId]);
}
