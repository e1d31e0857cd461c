//! Programs of others, which may hang, ask for a password or print without end.

use std::io::{self, ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use thiserror::Error;

/// What pipes may still hold once their program has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Longest quotation of what a program said.
const QUOTE_MAX: usize = 600;

/// Why a program of Slurm gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// It is not installed here.
    #[error("{program} is not there: expected the commands of Slurm in the PATH of the scheduler")]
    Missing {
        /// Which.
        program: String,
    },
    /// It cannot be run.
    #[error("{program} cannot be run: {reason}")]
    Start {
        /// Which.
        program: String,
        /// Why.
        reason: String,
    },
    /// It was ended because it took too long.
    #[error("{program} has not ended within {limit_s} s{}", quoted(.said))]
    Slow {
        /// Which.
        program: String,
        /// Seconds that it may take.
        limit_s: u64,
        /// What it had said.
        said: String,
    },
    /// It refused.
    #[error("{program} failed{}", quoted(.said))]
    Refused {
        /// Which.
        program: String,
        /// What it said.
        said: String,
    },
    /// It ended well, and what it printed makes no sense.
    #[error("{program} printed {printed:?}: expected {expected}")]
    Nonsense {
        /// Which.
        program: String,
        /// The beginning of it.
        printed: String,
        /// What would be understood.
        expected: &'static str,
    },
}

fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// How a program may be run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest that it may take.
    pub(crate) time: Duration,
    /// Bytes of its output that are kept.
    pub(crate) bytes: usize,
}

/// What a program has printed that ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Printed {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Whether more was printed than is kept.
    pub(crate) is_cut: bool,
}

/// Runs a program without a terminal, so that it can ask nobody for anything, and ends it with all its children when it
/// takes too long.
pub(crate) fn run(program: &str, command: &mut Command, limits: Limits) -> Result<Printed, CommandError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => CommandError::Missing { program: program.to_owned() },
        _ => CommandError::Start { program: program.to_owned(), reason: error.to_string() },
    })?;
    let stdout = read(child.stdout.take(), limits.bytes);
    let stderr = read(child.stderr.take(), limits.bytes);
    let status = wait(&mut child, limits.time);
    let (stdout, is_cut) = last_words(&stdout);
    let (stderr, _) = last_words(&stderr);
    let said = || {
        let text = if stderr.trim().is_empty() { &stdout } else { &stderr };
        one_line(text)
    };
    match status {
        Ok(Some(status)) if status.success() => Ok(Printed { stdout, stderr, is_cut }),
        Ok(Some(_)) => Err(CommandError::Refused { program: program.to_owned(), said: said() }),
        Ok(None) => {
            Err(CommandError::Slow { program: program.to_owned(), limit_s: limits.time.as_secs(), said: said() })
        }
        Err(error) => Err(CommandError::Start { program: program.to_owned(), reason: error.to_string() }),
    }
}

/// Waits for the end, or makes it.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<std::process::ExitStatus>> {
    let pid = Pid::from_child(child);
    let exited = pidfd_open(pid, PidfdFlags::empty())?;
    let limit = limit.try_into().map_err(io::Error::other)?;
    let is_over = poll(&mut [PollFd::new(&exited, PollFlags::IN)], Some(&limit))? > 0;
    if is_over {
        return child.wait().map(Some);
    }
    // It has a group of its own, and is still there to be waited for: nobody else can be hit.
    kill_process_group(pid, Signal::KILL)?;
    child.wait()?;
    Ok(None)
}

/// Reads beside the caller, who must not wait for children that keep a pipe open.
fn read(pipe: Option<impl Read + Send + 'static>, bytes: usize) -> Receiver<(Vec<u8>, bool)> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let Some(mut pipe) = pipe else { return };
        let mut kept = Vec::new();
        let limit = u64::try_from(bytes).unwrap_or(u64::MAX);
        let failed = pipe.by_ref().take(limit).read_to_end(&mut kept).is_err();
        let rest = io::copy(&mut pipe, &mut io::sink()).unwrap_or(0);
        // Who asked may have given up.
        drop(sender.send((kept, failed || rest > 0)));
    });
    receiver
}

fn last_words(read: &Receiver<(Vec<u8>, bool)>) -> (String, bool) {
    let (bytes, is_cut) = read.recv_timeout(LAST_WORDS).unwrap_or((Vec::new(), true));
    (String::from_utf8_lossy(&bytes).into_owned(), is_cut)
}

/// What was printed, as part of a sentence.
pub(crate) fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let joined = lines.collect::<Vec<_>>().join("; ");
    match joined.char_indices().nth(QUOTE_MAX) {
        Some((end, _)) => format!("{}…", &joined[..end]),
        None => joined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str, time: Duration) -> Result<Printed, CommandError> {
        run("sbatch", Command::new("sh").args(["-c", text]), Limits { time, bytes: 1_000 })
    }

    const SHORT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_that_hangs_is_ended_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let text = format!("sleep 1000 & echo $! > {}; echo Password: >&2; wait", pid.display());
        let error = shell(&text, Duration::from_secs(2)).unwrap_err();
        assert_eq!(error.to_string(), "sbatch has not ended within 2 s: Password:");
        let child: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        let deadline = std::time::Instant::now() + LONG;
        let stat = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        while !stat().is_empty() && !stat().contains(") Z ") {
            assert!(std::time::Instant::now() < deadline, "{}", stat());
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_program_that_asks_for_a_password_reads_nothing() {
        let printed = shell("read answer || echo nobody", LONG).unwrap();
        assert_eq!(printed.stdout, "nobody\n");
    }

    #[test]
    fn a_program_that_prints_without_end_is_ended_and_the_beginning_is_kept() {
        let error = shell("yes refused >&2", SHORT).unwrap_err();
        assert!(matches!(&error, CommandError::Slow { said, .. } if said.starts_with("refused; refused")), "{error}");
        let printed = shell("head -c 5000 /dev/zero | tr '\\0' x", LONG).unwrap();
        assert_eq!((printed.stdout.len(), printed.is_cut), (1_000, true));
    }

    #[test]
    fn a_refusal_is_repeated() {
        let error = shell("echo 'sbatch: error: Invalid account' >&2; echo '  really' >&2; exit 1", LONG).unwrap_err();
        assert_eq!(error.to_string(), "sbatch failed: sbatch: error: Invalid account; really");
        let limits = Limits { time: LONG, bytes: 10 };
        let error = run("sbatch", &mut Command::new("/nowhere/sbatch"), limits).unwrap_err();
        assert_eq!(
            error.to_string(),
            "sbatch is not there: expected the commands of Slurm in the PATH of the scheduler"
        );
    }
}
