use std::convert::Infallible;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pollux_backend::{Backend, Observer};
use tokio::sync::oneshot;

use crate::recovery::recover;
use crate::{Handle, Retention, ServerError, ServerSettings};

/// A scheduler that runs in a thread of its own. Dropping it does not end it.
#[derive(Debug)]
pub struct Server {
    handle: Handle,
    state_dir: PathBuf,
    policy: &'static str,
    retention: Retention,
    grace: Duration,
    damaged: Option<u64>,
    /// Closed when the scheduler has ended, however that came.
    ended: oneshot::Receiver<Infallible>,
    thread: JoinHandle<Result<(), ServerError>>,
}

impl Server {
    /// Carries on with what the state folder holds. The backend is opened when the folder is ours.
    pub fn start<E: Into<Box<dyn Error + Send + Sync>>>(
        settings: ServerSettings,
        open_backend: impl FnOnce(Observer) -> Result<Box<dyn Backend>, E>,
    ) -> Result<Self, ServerError> {
        let open = |observer| open_backend(observer).map_err(|error| ServerError::Backend(error.into()));
        let (policy, retention, grace) = (settings.policy.name(), settings.retention, settings.grace);
        let (mut scheduler, handle) = recover(settings, open)?;
        let (state_dir, damaged) = (scheduler.settings.state_dir.clone(), scheduler.damaged);
        let (running, ended) = oneshot::channel();
        let run = move || {
            let _running = running;
            scheduler.resume()?;
            scheduler.run()
        };
        let thread = thread::Builder::new().name("scheduler".to_owned()).spawn(run).map_err(ServerError::Thread)?;
        Ok(Self { handle, state_dir, policy, retention, grace, damaged, ended, thread })
    }

    /// How to speak to it.
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Where everything is kept; absolute.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Who decides who gets what, by name.
    pub const fn policy(&self) -> &'static str {
        self.policy
    }

    /// How long checkpoints of jobs that are over are kept.
    pub const fn retention(&self) -> Retention {
        self.retention
    }

    /// What a replica may take to save and leave.
    pub const fn grace(&self) -> Duration {
        self.grace
    }

    /// The number of a record at the end of the journal that made no sense and was set aside.
    pub const fn damaged(&self) -> Option<u64> {
        self.damaged
    }

    /// Waits in a task until it has ended.
    pub(crate) async fn ended(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.ended).await;
    }

    /// Waits until it has ended, by [`Handle::shut_down`] or because it cannot go on.
    pub fn join(self) -> Result<(), ServerError> {
        self.thread.join().unwrap_or(Err(ServerError::Broken))
    }
}
