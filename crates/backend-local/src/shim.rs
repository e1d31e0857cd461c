//! The program that watches over one replica, whether or not the daemon lives.

mod foreground;
mod launch;
mod log;
mod signals;
mod supervisor;

use std::env;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;

use pollux_backend::Exit;
use rustix::process::{Signal, getpid, set_child_subreaper, setsid};
use thiserror::Error;

use crate::folder::{Claim, Ending, Folder};
use crate::process::{Process, pid};
pub use foreground::{Foreground, Stopper};
use signals::Signals;

/// Why a shim gave up. It is read by people only, in the log of its replica.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShimError {
    /// It was started by somebody who does not know what it is.
    #[error("a shim is started by the daemon, with the folder of a replica")]
    Arguments,
    /// The system refused something.
    #[error("the shim cannot go on: {0}")]
    System(#[from] io::Error),
}

/// Runs `PROGRAM shim ARGUMENTS`: the shim itself, given a replica's folder; given also the number of the shim, the
/// process that becomes the worker.
pub fn shim(arguments: &[OsString]) -> Result<(), ShimError> {
    match arguments {
        [folder] => Ok(watch_over(&Folder::at(folder))?),
        [folder, parent] => {
            let parent = parent.to_str().and_then(|text| pid(text.parse().ok()?));
            Ok(launch::become_worker(Path::new(folder), parent.ok_or(ShimError::Arguments)?)?)
        }
        _ => Err(ShimError::Arguments),
    }
}

fn watch_over(folder: &Folder) -> io::Result<()> {
    // Neither the daemon's terminal nor its end concerns us.
    setsid()?;
    // Whoever loses its parent below us becomes our child.
    set_child_subreaper(Some(getpid()))?;
    // Once the order is claimed the daemon sends signals, so they are listened to before.
    let signals = Signals::listen()?;
    match Folder::at(".").claim(Claim::Shim(Process::current()?)) {
        Ok(Claim::Shim(owner)) if owner == Process::current()? => {}
        // The daemon died after it had started us, and the next one has voided our order or removed it.
        Ok(Claim::Shim(_) | Claim::Void) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    env::set_current_dir("/")?;
    let ending = if folder.stop().is_some() {
        Ending::Exited(Exit::Signal(Signal::TERM.as_raw()))
    } else {
        supervisor::run_worker(folder, signals, None)?
    };
    folder.write_ending(&ending)
}
