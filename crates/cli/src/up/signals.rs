use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::{flag, low_level};
use tracing::info;

/// As shells say it of a program that was interrupted.
const INTERRUPTED: i32 = 130;

/// Signals that came since it was made: the first ends the scheduler in good order, the second ends this process at once.
pub(crate) struct Signals {
    heard: UnixStream,
}

impl Signals {
    /// Before anybody can know that there is a scheduler.
    pub(crate) fn listen() -> io::Result<Self> {
        let (heard, signalled) = UnixStream::pair()?;
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: what the first one arms, only the second one meets.
            flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&again))?;
            flag::register(signal, Arc::clone(&again))?;
            low_level::pipe::register(signal, signalled.try_clone()?)?;
        }
        Ok(Self { heard })
    }

    /// Does something with each SIGUSR1, which ends this process no more.
    pub(crate) fn on_usr1(mut act: impl FnMut() + Send + 'static) -> io::Result<()> {
        let (mut heard, signalled) = UnixStream::pair()?;
        low_level::pipe::register(SIGUSR1, signalled)?;
        let wait = move || {
            while heard.read_exact(&mut [0]).is_ok() {
                act();
            }
        };
        thread::Builder::new().name("usr1".to_owned()).spawn(wait).map(drop)
    }

    /// Ends a scheduler with the first signal.
    pub(crate) fn stop(mut self, stop: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let wait = move || {
            // The other end is never closed, so that this is a signal or will never be one.
            if self.heard.read_exact(&mut [0]).is_ok() {
                info!("saving and ending; once more to end at once");
                stop();
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
    }
}
