use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use pollux_backend::{Exit, Observation, ReplicaId, ReplicaOrder};
use rustix::process::{Pid, Signal, getpid, set_child_subreaper, set_parent_process_death_signal};

use super::signals::Signals;
use super::supervisor::run_worker;
use crate::LogLimits;
use crate::folder::{Ending, Folder, Record};
use crate::process::{Process, kill, marked, signal};

/// Runs one replica below this very process, which is the main one of a container or a child of that. The program must also
/// answer to `PROGRAM shim`.
pub struct Foreground {
    folder: Folder,
    order: ReplicaOrder,
    signals: Signals,
}

/// Ends what a [`Foreground`] runs, from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    folder: Folder,
    process: Process,
}

impl Stopper {
    /// Ends the replica of a folder that a child of this process runs.
    pub fn of_child(folder: &Path, child: &Child) -> io::Result<Self> {
        Ok(Self { folder: Folder::at(folder), process: Process::of(Pid::from_child(child))? })
    }

    /// Tells it to end within the grace. Another call may shorten that.
    pub fn stop(&self, grace: Duration) -> io::Result<()> {
        self.folder.write_stop(grace)?;
        self.terminate()
    }

    /// Tells it to end within the grace that it began with.
    pub fn terminate(&self) -> io::Result<()> {
        match self.process.open()? {
            Some(process) => signal(&process, Signal::TERM),
            None => Ok(()),
        }
    }
}

impl Foreground {
    /// Gets ready, in a folder that need not be there. A stop by SIGTERM has this grace.
    pub fn prepare(folder: &Path, order: ReplicaOrder, grace: Duration) -> io::Result<Self> {
        Self::write(folder, order, grace, None)?;
        Self::open(folder)
    }

    /// Writes down what is to be run in a folder, by a process that opens it, or only that it is to end.
    pub fn write(folder: &Path, order: ReplicaOrder, grace: Duration, stop: Option<Duration>) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let folder = Folder::at(folder);
        folder.write_order(&Record::in_foreground(order, grace))?;
        stop.map_or(Ok(()), |grace| folder.write_stop(grace))
    }

    /// Gets ready for what was written into a folder.
    pub fn open(folder: &Path) -> io::Result<Self> {
        // Whoever loses its parent below us becomes our child.
        set_child_subreaper(Some(getpid()))?;
        let signals = Signals::listen()?;
        let folder = Folder::at(folder);
        let order = folder.order()?.order;
        Ok(Self { folder, order, signals })
    }

    /// What ends it.
    pub fn stopper(&self) -> io::Result<Stopper> {
        Ok(Stopper { folder: self.folder.clone(), process: Process::current()? })
    }

    /// Whether the program of a replica in this folder runs, or did.
    pub fn has_started(folder: &Path) -> bool {
        Folder::at(folder).worker_has_started()
    }

    /// Whether it was written down how the replica in this folder ended.
    pub fn has_ended(folder: &Path) -> bool {
        Folder::at(folder).has_ended()
    }

    /// How the replica in this folder ended whose process is gone, which is written down from now on; what is left of it is
    /// killed.
    pub fn conclude(folder: &Path, replica: ReplicaId) -> io::Result<Observation> {
        marked(folder)?.iter().try_for_each(kill)?;
        let folder = Folder::at(folder);
        let ending = folder.ending()?;
        if !folder.has_ended() {
            folder.write_ending(&ending)?;
        }
        Ok(ending.observation(replica))
    }

    /// Runs it to its end, and that of all that it has started.
    pub fn run(self, log: Box<dyn Write>) -> io::Result<Observation> {
        let replica = self.order.replica;
        Ok(self.run_to_end(log)?.observation(replica))
    }

    /// The same below a process that waits for it: it ends with that, and writes down how the replica ended.
    pub fn run_as_child(self, log: Box<dyn Write>) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        let folder = self.folder.clone();
        let ending = self.run_to_end(log)?;
        folder.write_ending(&ending)
    }

    fn run_to_end(self, log: Box<dyn Write>) -> io::Result<Ending> {
        match self.folder.stop() {
            Some(_) => Ok(Ending::Exited(Exit::Signal(Signal::TERM.as_raw()))),
            None => run_worker(&self.folder, self.signals, Some(log)),
        }
    }
}

impl Record {
    fn in_foreground(order: ReplicaOrder, grace: Duration) -> Self {
        Self::of(order, Vec::new(), grace, LogLimits::default(), None)
    }
}
