use std::error::Error;
use std::thread::{self, JoinHandle};

use pollux_backend::{Backend, Observer};

use crate::recovery::recover;
use crate::{Handle, ServerError, ServerSettings};

/// A scheduler that runs in a thread of its own. Dropping it does not end it.
#[derive(Debug)]
pub struct Server {
    handle: Handle,
    thread: JoinHandle<Result<(), ServerError>>,
}

impl Server {
    /// Carries on with what the state folder holds. The backend is opened when the folder is ours.
    pub fn start<E: Into<Box<dyn Error + Send + Sync>>>(
        settings: ServerSettings,
        open_backend: impl FnOnce(Observer) -> Result<Box<dyn Backend>, E>,
    ) -> Result<Self, ServerError> {
        let open = |observer| open_backend(observer).map_err(|error| ServerError::Backend(error.into()));
        let (mut scheduler, handle) = recover(settings, open)?;
        let run = move || {
            scheduler.resume()?;
            scheduler.run()
        };
        let thread = thread::Builder::new().name("scheduler".to_owned()).spawn(run).map_err(ServerError::Thread)?;
        Ok(Self { handle, thread })
    }

    /// How to speak to it.
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits until it has ended, by [`Handle::shut_down`] or because it cannot go on.
    pub fn join(self) -> Result<(), ServerError> {
        self.thread.join().unwrap_or(Err(ServerError::Broken))
    }
}
