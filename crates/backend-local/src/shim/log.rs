use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::LogLimits;
use crate::folder::Folder;

/// What one stream may have unwritten: a line that is longer is cut.
const LINE_MAX: usize = 64 * 1024;

/// The log of a replica.
pub(super) struct Log {
    place: Place,
    /// What could not be written.
    lost_bytes: u64,
}

/// Where a log is kept.
enum Place {
    /// In a few files of limited size. `file` is the newest, with the position of its first byte.
    Files { folder: Folder, limits: LogLimits, file: Option<(File, u64)> },
    /// By somebody else.
    Elsewhere(Box<dyn Write>),
}

impl Log {
    pub(super) fn new(folder: &Folder, limits: LogLimits) -> Self {
        Self { place: Place::Files { folder: folder.clone(), limits, file: None }, lost_bytes: 0 }
    }

    pub(super) fn elsewhere(log: Box<dyn Write>) -> Self {
        Self { place: Place::Elsewhere(log), lost_bytes: 0 }
    }

    /// Adds some lines. A disk that is full costs them, and not the worker, which would wait for us.
    pub(super) fn write(&mut self, lines: &[u8]) {
        if self.try_write(lines).is_err() {
            self.lost_bytes += lines.len() as u64;
        }
    }

    fn try_write(&mut self, lines: &[u8]) -> io::Result<()> {
        let note = match self.lost_bytes {
            0 => String::new(),
            lost => format!("[{lost} bytes could not be written here]\n"),
        };
        match &mut self.place {
            Place::Elsewhere(log) => {
                log.write_all(note.as_bytes())?;
                log.write_all(lines)?;
                log.flush()?;
            }
            Place::Files { folder, limits, file: newest } => {
                let bytes = (note.len() + lines.len()) as u64;
                let (mut file, mut start) = match newest.take() {
                    Some(open) => open,
                    None => folder.open_log()?,
                };
                // Not what was written here: a shim that gives up writes there, too.
                let size = file.metadata()?.len();
                if size > 0 && size + bytes > limits.bytes_max {
                    start += size;
                    file = folder.rotate_log(start, limits.old_files)?;
                }
                file.write_all(note.as_bytes())?;
                file.write_all(lines)?;
                *newest = Some((file, start));
            }
        }
        self.lost_bytes = 0;
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::test_folder::TestFolder;

    fn log(folder: &TestFolder) -> Log {
        Log::new(&Folder::at(folder.path()), LogLimits::default())
    }

    fn text(folder: &TestFolder) -> String {
        fs::read_to_string(folder.path().join("log-0")).unwrap()
    }

    #[test]
    fn lines_of_two_streams_do_not_mix() {
        let scratch = TestFolder::new("two-streams");
        let mut log = log(&scratch);
        let [(out, mut out_writer), (err, mut err_writer)] = [io::pipe().unwrap(), io::pipe().unwrap()];
        let (mut out, mut err) = (Stream::new(out.into()).unwrap(), Stream::new(err.into()).unwrap());
        out_writer.write_all(b"one\nepoch").unwrap();
        while out.pump(&mut log).unwrap() {}
        assert!(out.is_within_a_line());
        err_writer.write_all(b"warning\n").unwrap();
        while err.pump(&mut log).unwrap() {}
        out_writer.write_all(b" 2\nlast").unwrap();
        drop(out_writer);
        // Programs that other tests start have a copy of the writer for a moment.
        while out.handle().is_some() {
            out.pump(&mut log).unwrap();
        }
        assert_eq!(text(&scratch), "one\nwarning\nepoch 2\nlast");
        assert!(!out.is_within_a_line());
    }

    #[test]
    fn what_a_full_disk_cost_is_told_once_there_is_room() {
        let scratch = TestFolder::new("full-disk");
        let mut log = log(&scratch);
        fs::remove_dir(scratch.path()).unwrap();
        log.write(b"lost\n");
        log.write(b"also lost\n");
        fs::create_dir(scratch.path()).unwrap();
        log.write(b"kept\n");
        assert_eq!(text(&scratch), "[15 bytes could not be written here]\nkept\n");
    }
}
