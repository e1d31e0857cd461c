use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// Signals as bytes that one can wait for.
pub(super) struct Signals {
    stops: UnixStream,
    deaths: UnixStream,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self { stops: bytes_of(&[SIGTERM, SIGINT, SIGHUP])?, deaths: bytes_of(&[SIGCHLD])? })
    }

    /// Whether somebody wants the replica to end, since this was asked last.
    pub(super) fn stop_came(&mut self) -> io::Result<bool> {
        take(&mut self.stops)
    }

    /// Whether a child has ended, since this was asked last.
    pub(super) fn death_came(&mut self) -> io::Result<bool> {
        take(&mut self.deaths)
    }

    /// What can be read from when a signal has come.
    pub(super) fn handles(&self) -> [BorrowedFd<'_>; 2] {
        [self.stops.as_fd(), self.deaths.as_fd()]
    }
}

fn bytes_of(signals: &[i32]) -> io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    for &signal in signals {
        pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader)
}

fn take(stream: &mut UnixStream) -> io::Result<bool> {
    let mut came = false;
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => return Ok(came),
            Ok(_) => came = true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(came),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
