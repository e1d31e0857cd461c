use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGTERM;

use crate::WorkerError;

/// Whether `SIGTERM` came. It does no more than set a flag: what to do about it is decided between two steps.
#[derive(Clone, Debug, Default)]
pub struct Termination {
    requested: Arc<AtomicBool>,
}

impl Termination {
    /// From now on `SIGTERM` sets the flag instead of ending the process.
    pub fn install() -> Result<Self, WorkerError> {
        let termination = Self::default();
        signal_hook::flag::register(SIGTERM, Arc::clone(&termination.requested)).map_err(WorkerError::Signal)?;
        Ok(termination)
    }

    /// Sets the flag, as the signal would.
    pub fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
    }

    /// Whether the flag is set.
    pub fn requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }
}
