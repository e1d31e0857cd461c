use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use pollux_server::Stopper;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::output;

/// As shells say it of a program that was interrupted.
const INTERRUPTED: i32 = 130;

/// The first signal ends the scheduler in good order, the second at once.
pub(super) fn stop_on_signal(stopper: Stopper) -> io::Result<()> {
    let (mut heard, signalled) = UnixStream::pair()?;
    let again = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: what the first one arms, only the second one meets.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&again))?;
        flag::register(signal, Arc::clone(&again))?;
        low_level::pipe::register(signal, signalled.try_clone()?)?;
    }
    let wait = move || {
        // The other end is never closed, so that this is a signal or will never be one.
        if heard.read_exact(&mut [0]).is_ok() {
            output::note(&"saving and ending; once more to end at once");
            stopper.stop();
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}
