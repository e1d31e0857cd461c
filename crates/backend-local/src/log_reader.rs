//! Logs by position, beside the process that writes them.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pollux_backend::{LogAnswer, LogChunk, LogReader, LogStart, ReplicaId};

use crate::disk::DiskThreads;
use crate::folder::Folder;

/// Threads that read for everybody.
const THREADS: u32 = 2;
/// More files in a row are not dropped between a look and the opening.
const ATTEMPTS_MAX: u32 = 5;
/// What is looked through at once for the beginnings of lines.
const CHUNK_BYTES: u64 = 64 * 1024;

/// Reads the files that shims write.
#[derive(Debug)]
pub(crate) struct LocalLogs {
    replicas: PathBuf,
    threads: DiskThreads,
}

impl LocalLogs {
    pub(crate) fn new(replicas: PathBuf) -> io::Result<Self> {
        Ok(Self { replicas, threads: DiskThreads::start("local-logs", THREADS)? })
    }
}

impl LogReader for LocalLogs {
    fn read(&self, replica: ReplicaId, from: LogStart, bytes_max: usize, answer: LogAnswer) {
        let folder = Folder::of(&self.replicas, replica);
        self.threads.run(move || answer(read(&folder, from, bytes_max)));
    }
}

fn read(folder: &Folder, from: LogStart, bytes_max: usize) -> io::Result<LogChunk> {
    for _ in 0..ATTEMPTS_MAX {
        // What is read after the end is all there will be.
        let has_ended = folder.has_ended();
        match Log::open(folder).and_then(|log| log.read(from, bytes_max)) {
            // The oldest file was dropped meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok((chunk, end)) => return Ok(LogChunk { ended: has_ended && chunk.next >= end, ..chunk }),
        }
    }
    Err(ErrorKind::NotFound.into())
}

/// The files of a log, oldest first.
struct Log {
    files: Vec<Piece>,
}

/// A file of a log: the bytes from one position to another.
struct Piece {
    file: File,
    start: u64,
    end: u64,
}

impl Log {
    fn open(folder: &Folder) -> io::Result<Self> {
        let listed = folder.logs()?;
        let mut files = Vec::new();
        for (idx, (start, path)) in listed.iter().enumerate() {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            // What somebody added to a file that was full has no position.
            let end = listed.get(idx + 1).map_or(u64::MAX, |(next, _)| *next);
            files.push(Piece { file, start: *start, end: (start + bytes).min(end) });
        }
        Ok(Self { files })
    }

    /// Some of it, and where all of it ends.
    fn read(&self, from: LogStart, bytes_max: usize) -> io::Result<(LogChunk, u64)> {
        let first = self.files.first().map_or(0, |piece| piece.start);
        let end = self.files.last().map_or(0, |piece| piece.end);
        let start = match from {
            LogStart::At(position) => position.clamp(first, end),
            LogStart::LastLines(lines) => self.last_lines(lines)?,
        };
        let dropped = match from {
            LogStart::At(position) => first.saturating_sub(position),
            LogStart::LastLines(_) => 0,
        };
        let mut bytes = Vec::new();
        let mut next = start;
        for piece in self.files.iter().filter(|piece| piece.end > start) {
            // Where a file is shorter than the next one says, the rest was never written.
            next = next.max(piece.start);
            let wanted = (bytes_max - bytes.len()).min(usize::try_from(piece.end - next).unwrap_or(usize::MAX));
            let before = bytes.len();
            At { file: &piece.file, offset: next - piece.start }.take(wanted as u64).read_to_end(&mut bytes)?;
            next += (bytes.len() - before) as u64;
            if bytes.len() == bytes_max {
                break;
            }
        }
        Ok((LogChunk { bytes, next, dropped, ended: false }, end))
    }

    /// The position at which the last lines begin, or the first that is kept.
    fn last_lines(&self, lines: u64) -> io::Result<u64> {
        let end = self.files.last().map_or(0, |piece| piece.end);
        if lines == 0 {
            return Ok(end);
        }
        let mut counted = 0;
        let mut chunk = Vec::new();
        for piece in self.files.iter().rev() {
            let mut upper = piece.end;
            while upper > piece.start {
                let lower = upper.saturating_sub(CHUNK_BYTES).max(piece.start);
                chunk.clear();
                let part = At { file: &piece.file, offset: lower - piece.start };
                part.take(upper - lower).read_to_end(&mut chunk)?;
                for (idx, _) in chunk.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
                    let after = lower + idx as u64 + 1;
                    // The end of the last line begins no other.
                    if after == end {
                        continue;
                    }
                    counted += 1;
                    if counted == lines {
                        return Ok(after);
                    }
                }
                upper = lower;
            }
        }
        Ok(self.files.first().map_or(0, |piece| piece.start))
    }
}

/// A file from some place on.
struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read_at(buffer, self.offset)?;
        self.offset += bytes as u64;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::test_folder::TestFolder;

    fn text(folder: &Folder, from: LogStart) -> (String, u64, u64) {
        let chunk = read(folder, from, 1_000).unwrap();
        (String::from_utf8(chunk.bytes).unwrap(), chunk.next, chunk.dropped)
    }

    #[test]
    fn files_of_a_log_are_one_and_what_is_gone_is_counted() {
        let folder = TestFolder::new("log-positions");
        fs::write(folder.path().join("log-100"), "a\nb\n").unwrap();
        // Somebody wrote on after the next file was begun.
        fs::write(folder.path().join("log-104"), "c\nd\n(late)").unwrap();
        fs::write(folder.path().join("log-108"), "e").unwrap();
        let log = Folder::at(folder.path());
        assert_eq!(text(&log, LogStart::At(0)), ("a\nb\nc\nd\ne".to_owned(), 109, 100));
        assert_eq!(text(&log, LogStart::At(102)), ("b\nc\nd\ne".to_owned(), 109, 0));
        assert_eq!(text(&log, LogStart::At(109)), (String::new(), 109, 0));
        assert_eq!(text(&log, LogStart::LastLines(3)), ("c\nd\ne".to_owned(), 109, 0));
        assert_eq!(text(&log, LogStart::LastLines(9)), ("a\nb\nc\nd\ne".to_owned(), 109, 0));
        assert_eq!(read(&log, LogStart::At(103), 3).unwrap().bytes, b"\nc\n");
    }

    #[test]
    fn a_log_of_the_previous_version_is_read_from_what_is_left_of_it() {
        let folder = TestFolder::new("log-previous");
        for (name, bytes) in [("log", "three\n"), ("log.1", "two\n"), ("log.2", "one\n")] {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let log = Folder::at(folder.path());
        assert_eq!(text(&log, LogStart::At(0)), ("one\ntwo\nthree\n".to_owned(), 14, 0));
        assert_eq!(text(&log, LogStart::LastLines(2)), ("two\nthree\n".to_owned(), 14, 0));
    }
}
