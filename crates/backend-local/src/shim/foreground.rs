use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use pollux_backend::{Exit, Observation, ReplicaOrder};
use rustix::process::{Signal, getpid, kill_process, set_child_subreaper};

use super::signals::Signals;
use super::supervisor::run_worker;
use crate::LogLimits;
use crate::folder::{Ending, Folder, Record};

/// Runs one replica below this very process, which is the main one of a container. The program must also answer to
/// `PROGRAM shim`.
pub struct Foreground {
    folder: Folder,
    order: ReplicaOrder,
    signals: Signals,
}

/// Ends what a [`Foreground`] runs, from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    folder: Folder,
}

impl Stopper {
    /// Tells it to end within the grace. Another call may shorten that.
    pub fn stop(&self, grace: Duration) -> io::Result<()> {
        self.folder.write_stop(grace)?;
        Ok(kill_process(getpid(), Signal::TERM)?)
    }
}

impl Foreground {
    /// Gets ready, in a folder that need not be there. A stop by SIGTERM has this grace.
    pub fn prepare(folder: &Path, order: ReplicaOrder, grace: Duration) -> io::Result<Self> {
        // Whoever loses its parent below us becomes our child.
        set_child_subreaper(Some(getpid()))?;
        let signals = Signals::listen()?;
        fs::create_dir_all(folder)?;
        let folder = Folder::at(folder);
        folder.write_order(&Record::in_foreground(order.clone(), grace))?;
        Ok(Self { folder, order, signals })
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        Stopper { folder: self.folder.clone() }
    }

    /// Whether the program of a replica in this folder runs, or did.
    pub fn has_started(folder: &Path) -> bool {
        Folder::at(folder).worker_has_started()
    }

    /// Runs it to its end, and that of all that it has started.
    pub fn run(self, log: Box<dyn Write>) -> io::Result<Observation> {
        let ending = match self.folder.stop() {
            Some(_) => Ending::Exited(Exit::Signal(Signal::TERM.as_raw())),
            None => run_worker(&self.folder, self.signals, Some(log))?,
        };
        Ok(ending.observation(self.order.replica))
    }
}

impl Record {
    fn in_foreground(order: ReplicaOrder, grace: Duration) -> Self {
        Self::of(order, Vec::new(), grace, LogLimits::default(), None)
    }
}
