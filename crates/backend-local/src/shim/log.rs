use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::LogLimits;
use crate::folder::Folder;

/// What one stream may have unwritten: a line that is longer is cut.
const LINE_MAX: usize = 64 * 1024;

/// The log of a replica, in a few files of limited size.
pub(super) struct Log {
    folder: Folder,
    limits: LogLimits,
    file: Option<File>,
    bytes: u64,
    /// What could not be written.
    lost_bytes: u64,
}

impl Log {
    pub(super) fn new(folder: &Folder, limits: LogLimits) -> Self {
        Self { folder: folder.clone(), limits, file: None, bytes: 0, lost_bytes: 0 }
    }

    /// Adds some lines. A disk that is full costs them, and not the worker, which would wait for us.
    pub(super) fn write(&mut self, lines: &[u8]) {
        if self.try_write(lines).is_err() {
            self.lost_bytes += lines.len() as u64;
            self.file = None;
        }
    }

    fn try_write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.file.is_some() && self.bytes + lines.len() as u64 > self.limits.bytes_max {
            self.file = None;
            self.folder.rotate_log(self.limits.old_files)?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = self.folder.open_log()?;
                self.bytes = file.metadata()?.len();
                self.file.insert(file)
            }
        };
        if self.lost_bytes > 0 {
            let note = format!("[{} bytes could not be written here]\n", self.lost_bytes);
            file.write_all(note.as_bytes())?;
            self.bytes += note.len() as u64;
            self.lost_bytes = 0;
        }
        file.write_all(lines)?;
        self.bytes += lines.len() as u64;
        Ok(())
    }
}

/// A pipe that is read from without waiting.
pub(super) fn without_blocking(pipe: OwnedFd) -> io::Result<File> {
    fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
    Ok(File::from(pipe))
}

/// One stream of a worker, handed on line by line so that two of them do not mix within one.
pub(super) struct Stream {
    /// `None` once it has ended.
    pipe: Option<File>,
    buffer: Box<[u8]>,
    filled: usize,
}

impl Stream {
    pub(super) fn new(pipe: OwnedFd) -> io::Result<Self> {
        Ok(Self { pipe: Some(without_blocking(pipe)?), buffer: vec![0; LINE_MAX].into(), filled: 0 })
    }

    /// What can be read from when there is more.
    pub(super) fn handle(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Whether part of a line waits for the rest.
    pub(super) fn is_within_a_line(&self) -> bool {
        self.filled > 0
    }

    /// Moves once what there is; tells whether there may be more.
    pub(super) fn pump(&mut self, log: &mut Log) -> io::Result<bool> {
        let Some(pipe) = &mut self.pipe else { return Ok(false) };
        match pipe.read(&mut self.buffer[self.filled..]) {
            Ok(0) => {
                self.pipe = None;
                self.flush(log);
                Ok(false)
            }
            Ok(bytes) => {
                self.filled += bytes;
                self.hand_on(log);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Writes what there is of a line.
    pub(super) fn flush(&mut self, log: &mut Log) {
        if self.filled > 0 {
            log.write(&self.buffer[..self.filled]);
            self.filled = 0;
        }
    }

    fn hand_on(&mut self, log: &mut Log) {
        let whole = self.buffer[..self.filled].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        if whole > 0 {
            log.write(&self.buffer[..whole]);
            self.buffer.copy_within(whole..self.filled, 0);
            self.filled -= whole;
        }
        if self.filled == self.buffer.len() {
            self.flush(log);
        }
    }
}
