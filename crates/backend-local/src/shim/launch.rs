use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use pollux_backend::ReplicaOrder;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::folder::{Ending, Folder};
use crate::limits::lower_files_max;

/// What the user named is no program, for reasons that have no kind.
const PERMANENT: [Option<i32>; 2] = [Some(Errno::NOEXEC.raw_os_error()), Some(Errno::LOOP.raw_os_error())];

/// Turns this process, a child of the shim, into the worker. What keeps it from that is written to the pipe that it has
/// as its stdin; the pipe closes without a word when the worker runs.
pub(super) fn become_worker(folder: &Path, parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(parent) {
        // The shim died before we could have heard of it.
        return Ok(());
    }
    // A copy that closes when another program takes over.
    let mut pipe = fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let failure = match Folder::at(folder).order() {
        Ok(record) => {
            lower_files_max(record.files_max);
            run(&record.order)
        }
        Err(error) => Ending::StartFailed { reason: format!("its order cannot be read: {error}"), retryable: true },
    };
    pipe.write_all(&serde_json::to_vec(&failure)?)
}

/// Returns only if the worker cannot be run.
fn run(order: &ReplicaOrder) -> Ending {
    let Some((program, arguments)) = order.command.split_first() else {
        return Ending::StartFailed { reason: "the command is empty".to_owned(), retryable: false };
    };
    if let Err(error) = env::set_current_dir(&order.working_dir) {
        return failure(&format!("working directory {}", order.working_dir.display()), &error);
    }
    let error = Command::new(program).args(arguments).envs(&order.environment).stdin(Stdio::null()).exec();
    failure(&format!("program {program}"), &error)
}

fn failure(what: &str, error: &io::Error) -> Ending {
    let (why, retryable) = match error.kind() {
        ErrorKind::NotFound => ("not found".to_owned(), false),
        ErrorKind::PermissionDenied => ("permission denied".to_owned(), false),
        ErrorKind::NotADirectory => ("not a folder".to_owned(), false),
        ErrorKind::InvalidInput | ErrorKind::ArgumentListTooLong | ErrorKind::InvalidFilename => {
            (error.to_string(), false)
        }
        _ if PERMANENT.contains(&error.raw_os_error()) => (error.to_string(), false),
        // Whatever the machine is short of now.
        _ => (error.to_string(), true),
    };
    Ending::StartFailed { reason: format!("{what}: {why}"), retryable }
}
