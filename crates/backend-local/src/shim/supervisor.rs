use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pollux_backend::Exit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, wait};

use super::log::{Log, Stream, without_blocking};
use super::signals::Signals;
use crate::folder::{Ending, Folder, Record};
use crate::process::{MARK, Process, kill_descendants};

/// Part of a line is written when nothing follows for this long: a progress bar, a prompt.
const LINE_PAUSE: Duration = Duration::from_millis(200);

/// Before a start that could not be told is told again.
const RECORD_AGAIN: Duration = Duration::from_secs(1);

/// A longer grace is as good as this one, and moments must not overflow.
const GRACE_MAX: Duration = Duration::from_secs(1 << 31);

/// What pipes hold when everybody is dead is read in fewer steps; somebody else who got hold of one may write for ever.
const LAST_READS: u32 = 64;

/// Runs the worker that a folder orders, until it and all that it has started are gone. An error means that this is not
/// known.
pub(crate) fn run_worker(folder: &Folder, signals: Signals, log: Option<Box<dyn Write>>) -> io::Result<Ending> {
    let prepared = folder.order().and_then(|record| {
        folder.reserve_ending()?;
        let (launch, child) = spawn(folder)?;
        Ok((record, launch, child))
    });
    let (record, launch, child) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            let reason = format!("the worker cannot be prepared: {error}");
            return Ok(Ending::StartFailed { reason, retryable: true });
        }
    };
    let log = log.map_or_else(|| Log::new(folder, record.log), Log::elsewhere);
    let mut supervisor = Supervisor::new(folder, &record, signals, launch, child, log)?;
    if let Err(error) = supervisor.supervise() {
        supervisor.log.write(format!("[the worker is killed, because it cannot be watched: {error}]\n").as_bytes());
    }
    supervisor.kill_all()?;
    supervisor.finish()
}

/// Starts the process that becomes the worker; the pipe ends when it has, or tells why it cannot.
fn spawn(folder: &Folder) -> io::Result<(File, Child)> {
    let (launch, launch_writer) = io::pipe()?;
    // Not by the name of the program, which may have been replaced since.
    let mut command = Command::new("/proc/self/exe");
    command.arg("shim").arg(folder.path()).arg(getpid().as_raw_pid().to_string()).env(MARK, folder.path());
    command.stdin(launch_writer).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok((without_blocking(launch.into())?, command.process_group(0).spawn()?))
}

struct Supervisor<'a> {
    folder: &'a Folder,
    grace: Duration,
    signals: Signals,
    worker: Pid,
    process: Process,
    /// `None` once the worker runs, or cannot.
    launch: Option<File>,
    launch_failure: Vec<u8>,
    /// When to tell again that the worker runs, as long as that could not be written.
    record_start_at: Option<Instant>,
    streams: [Stream; 2],
    log: Log,
    exit: Option<Exit>,
    /// When a stop that was asked for loses its patience.
    kill_at: Option<Instant>,
}

impl<'a> Supervisor<'a> {
    fn new(
        folder: &'a Folder,
        record: &Record,
        signals: Signals,
        launch: File,
        mut child: Child,
        log: Log,
    ) -> io::Result<Self> {
        let worker = Pid::from_child(&child);
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            unreachable!("both were asked for");
        };
        Ok(Self {
            folder,
            grace: record.grace,
            signals,
            worker,
            process: Process::of(worker)?,
            launch: Some(launch),
            launch_failure: Vec::new(),
            record_start_at: None,
            streams: [Stream::new(stdout.into())?, Stream::new(stderr.into())?],
            log,
            exit: None,
            kill_at: None,
        })
    }

    /// Returns when nothing is left, or what is left is to be killed.
    fn supervise(&mut self) -> io::Result<()> {
        loop {
            self.wait()?;
            if self.signals.stop_came()? {
                self.stop();
            }
            if self.signals.death_came()? && !self.reap()? {
                return Ok(());
            }
            // What a worker leaves behind has the rest of the grace: it may be the one that saves, if the worker is a
            // shell around it.
            let kill_now = match self.kill_at {
                Some(at) => at <= Instant::now(),
                None => self.exit.is_some(),
            };
            if kill_now {
                return Ok(());
            }
        }
    }

    /// Waits until something happens, and keeps what the worker has written until then.
    fn wait(&mut self) -> io::Result<()> {
        let within_a_line = self.streams.iter().any(Stream::is_within_a_line);
        let moments = self.kill_at.into_iter().chain(self.record_start_at);
        let patience = moments.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = patience.chain(within_a_line.then_some(LINE_PAUSE)).min();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());

        let signals = self.signals.handles().map(|handle| PollFd::from_borrowed_fd(handle, PollFlags::IN));
        let launch = self.launch.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN));
        let streams = self.streams.iter().filter_map(Stream::handle);
        let streams = streams.map(|handle| PollFd::from_borrowed_fd(handle, PollFlags::IN));
        let mut handles: Vec<_> = signals.into_iter().chain(launch).chain(streams).collect();
        let quiet = match poll(&mut handles, timeout.as_ref()) {
            Ok(ready) => ready == 0,
            Err(Errno::INTR) => false,
            Err(error) => return Err(error.into()),
        };
        self.read_launch()?;
        if self.record_start_at.is_some_and(|at| at <= Instant::now()) {
            self.record_start();
        }
        for stream in &mut self.streams {
            stream.pump(&mut self.log)?;
            if quiet {
                stream.flush(&mut self.log);
            }
        }
        Ok(())
    }

    /// Tells the worker's group to end, and how long it has.
    fn stop(&mut self) {
        let grace = self.folder.stop().unwrap_or(self.grace).min(GRACE_MAX);
        let kill_at = Instant::now() + grace;
        if self.kill_at.is_none() {
            // The number is the worker's: it is not reaped as long as nobody has asked for a stop.
            #[expect(
                clippy::let_underscore_must_use,
                reason = "a group that cannot be told is killed when its time is over"
            )]
            let _ = kill_process_group(self.worker, Signal::TERM);
        }
        self.kill_at = Some(self.kill_at.map_or(kill_at, |earlier| earlier.min(kill_at)));
    }

    /// Takes note of children that have ended, adopted ones included; tells whether there are others.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.ended(pid, status),
                Ok(None) => return Ok(true),
                Err(Errno::CHILD) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus) {
        if pid == self.worker {
            let code = status.exit_status().map(Exit::Code);
            self.exit = code.or_else(|| status.terminating_signal().map(Exit::Signal));
        }
    }

    fn kill_all(&mut self) -> io::Result<()> {
        while self.reap()? {
            kill_descendants()?;
            // Children of the dead become ours, so as long as something lives below us, a child of ours does.
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) => self.ended(pid, status),
                Ok(None) | Err(Errno::CHILD | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read_launch(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.launch else { return Ok(()) };
        match pipe.read_to_end(&mut self.launch_failure) {
            Ok(_) => {
                self.launch = None;
                if self.launch_failure.is_empty() {
                    self.record_start();
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Lets the daemon know that the worker runs; where that cannot be written, such as on a full disk, again and again.
    fn record_start(&mut self) {
        let is_first = self.record_start_at.take().is_none();
        if let Err(error) = self.folder.write_worker(&self.process) {
            self.record_start_at = Some(Instant::now() + RECORD_AGAIN);
            if is_first {
                self.log.write(format!("[that the worker runs cannot be written down yet: {error}]\n").as_bytes());
            }
        }
    }

    /// How the worker ended, after everything that it has written is kept.
    fn finish(mut self) -> io::Result<Ending> {
        self.read_launch()?;
        for stream in &mut self.streams {
            for _ in 0..LAST_READS {
                if !stream.pump(&mut self.log)? {
                    break;
                }
            }
            stream.flush(&mut self.log);
        }
        if self.launch_failure.is_empty() {
            Ok(Ending::Exited(self.exit.unwrap_or(Exit::Lost)))
        } else {
            Ok(serde_json::from_slice(&self.launch_failure)?)
        }
    }
}
