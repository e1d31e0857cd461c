use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// What is read at once.
const CHUNK_BYTES: u64 = 64 * 1024;
/// A longer line is told in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Reads on in a log of several files, the newest of which grows, is renamed, and is followed by another.
#[derive(Debug)]
pub(crate) struct Tail {
    /// Before each line.
    prefix: Option<String>,
    /// The file by its inode, whatever it is called by now, and what of it was read.
    place: Option<(u64, u64)>,
    /// A line without its end.
    unfinished: Vec<u8>,
}

/// The files of a log, oldest first, whatever they are called by now.
#[derive(Debug)]
pub(crate) struct LogFiles(Vec<(File, u64)>);

impl LogFiles {
    pub(crate) fn open(paths: &[PathBuf]) -> io::Result<Self> {
        let open = |path: &PathBuf| {
            let file = File::open(path)?;
            let inode = file.metadata()?.ino();
            Ok((file, inode))
        };
        let files = paths.iter().map(open).collect::<io::Result<Vec<_>>>()?;
        // Renames while they are opened would hide one of them.
        for (path, (_, inode)) in paths.iter().zip(&files) {
            if path.metadata()?.ino() != *inode {
                return Err(io::ErrorKind::NotFound.into());
            }
        }
        Ok(Self(files))
    }
}

impl Tail {
    pub(crate) const fn new(prefix: Option<String>) -> Self {
        Self { prefix, place: None, unfinished: Vec::new() }
    }

    /// Some more lines; none if there are none at the moment.
    pub(crate) fn read(&mut self, files: &mut LogFiles) -> Vec<u8> {
        let mut lines = Vec::new();
        while lines.is_empty() {
            match self.chunk(files) {
                Ok(chunk) if !chunk.is_empty() => self.take(&chunk, &mut lines),
                // A disk that cannot be read has no more.
                Ok(_) | Err(_) => break,
            }
        }
        lines
    }

    /// The last line, if its end was never written.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        if !self.unfinished.is_empty() {
            self.end_line(&mut line);
        }
        line
    }

    /// Leaves out all but the last so many lines.
    pub(crate) fn skip_to_last(&mut self, files: &mut LogFiles, lines: u64) {
        let mut missing = lines;
        for (file, inode) in files.0.iter_mut().rev() {
            // Better all of it than nothing.
            match last_lines(file, missing).unwrap_or(LastLines::Counted(0)) {
                LastLines::From(offset) => {
                    self.place = Some((*inode, offset));
                    return;
                }
                LastLines::Counted(counted) => {
                    self.place = Some((*inode, 0));
                    missing -= counted;
                }
            }
        }
    }

    /// The next bytes of the file that is being read, or of the one after it.
    fn chunk(&mut self, files: &mut LogFiles) -> io::Result<Vec<u8>> {
        let current = self.place.and_then(|(inode, _)| files.0.iter().position(|(_, other)| *other == inode));
        // One that is gone was the oldest, and what is left comes after it.
        let first = current.unwrap_or(0);
        let read = self.place.filter(|_| current.is_some()).map_or(0, |(_, read)| read);
        let mut chunk = Vec::new();
        for (idx, (file, inode)) in files.0.iter_mut().enumerate().skip(first) {
            let from = if idx == first { read } else { 0 };
            file.seek(SeekFrom::Start(from))?;
            file.take(CHUNK_BYTES).read_to_end(&mut chunk)?;
            if !chunk.is_empty() {
                self.place = Some((*inode, from + chunk.len() as u64));
                break;
            }
        }
        Ok(chunk)
    }

    fn take(&mut self, chunk: &[u8], lines: &mut Vec<u8>) {
        for part in chunk.split_inclusive(|&byte| byte == b'\n') {
            let is_whole = part.ends_with(b"\n");
            self.unfinished.extend_from_slice(part.strip_suffix(b"\n").unwrap_or(part));
            if is_whole || self.unfinished.len() > LINE_BYTES_MAX {
                self.end_line(lines);
            }
        }
    }

    fn end_line(&mut self, lines: &mut Vec<u8>) {
        lines.extend_from_slice(self.prefix.as_deref().unwrap_or_default().as_bytes());
        lines.extend_from_slice(String::from_utf8_lossy(&self.unfinished).as_bytes());
        lines.push(b'\n');
        self.unfinished.clear();
    }
}

enum LastLines {
    /// They begin here.
    From(u64),
    /// The file has only so many.
    Counted(u64),
}

fn last_lines(file: &mut File, lines: u64) -> io::Result<LastLines> {
    let bytes = file.metadata()?.len();
    if lines == 0 {
        return Ok(LastLines::From(bytes));
    }
    let (mut end, mut counted) = (bytes, 0);
    let mut chunk = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(CHUNK_BYTES);
        file.seek(SeekFrom::Start(start))?;
        chunk.clear();
        file.take(end - start).read_to_end(&mut chunk)?;
        for (idx, _) in chunk.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let after = start + idx as u64 + 1;
            // The end of the last line begins no other.
            if after == bytes {
                continue;
            }
            counted += 1;
            if counted == lines {
                return Ok(LastLines::From(after));
            }
        }
        end = start;
    }
    Ok(LastLines::Counted(counted + u64::from(bytes > 0)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn all(tail: &mut Tail, files: &[&PathBuf]) -> String {
        let files: Vec<PathBuf> = files.iter().map(|&file| file.clone()).collect();
        let mut files = LogFiles::open(&files).unwrap();
        let lines = std::iter::from_fn(|| Some(tail.read(&mut files)).filter(|lines| !lines.is_empty()));
        String::from_utf8(lines.flatten().collect()).unwrap()
    }

    #[test]
    fn a_log_is_read_on_through_renames_and_an_unfinished_line_waits_for_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let [old, log] = ["log.1", "log"].map(|name| folder.path().join(name));
        let mut tail = Tail::new(Some("7| ".to_owned()));
        fs::write(&log, "one\ntwo\nthr").unwrap();
        assert_eq!(all(&mut tail, &[&log]), "7| one\n7| two\n");
        fs::write(&log, "one\ntwo\nthree\n").unwrap();
        fs::rename(&log, &old).unwrap();
        fs::write(&log, b"four\n\xff\n").unwrap();
        assert_eq!(all(&mut tail, &[&old, &log]), "7| three\n7| four\n7| \u{fffd}\n");
        fs::write(&log, b"four\n\xff\nend").unwrap();
        assert_eq!(all(&mut tail, &[&old, &log]), "");
        assert_eq!([tail.rest(), tail.rest()], [b"7| end\n".to_vec(), Vec::new()]);
    }

    #[test]
    fn the_last_lines_are_found_across_files_and_chunks() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["log.1", "log"].map(|name| folder.path().join(name));
        let long = "x".repeat(200_000);
        fs::write(&files[0], format!("first\n{long}\n")).unwrap();
        fs::write(&files[1], "a\nb\nc").unwrap();
        let last = |lines| {
            let mut tail = Tail::new(None);
            tail.skip_to_last(&mut LogFiles::open(&files).unwrap(), lines);
            all(&mut tail, &[&files[0], &files[1]]) + &String::from_utf8(tail.rest()).unwrap()
        };
        assert_eq!(last(0), "");
        assert_eq!(last(2), "b\nc\n");
        assert_eq!(last(3), "a\nb\nc\n");
        assert_eq!(last(4).len(), 200_000 + 2 + 6, "a line that is longer than most is told in two");
        assert!(last(5).starts_with("first\n") && last(100) == last(5));
    }
}
