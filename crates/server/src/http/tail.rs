use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pollux_api::LogPiece;

/// What is read at once.
const CHUNK_BYTES: u64 = 64 * 1024;
/// A longer line is told in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// A folder that was changed so lately may have been changed after its files were listed.
const SETTLED: Duration = Duration::from_secs(2);

/// How what is read is told.
#[derive(Debug)]
pub(crate) enum Format {
    /// Whole lines, each after this.
    Lines { prefix: String },
    /// Whatever there is of a replica, one message at a time, which also says where it ends.
    Messages { replica: u64 },
}

/// A place in a log, for as long as that is kept: a file by its number, and bytes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) file: u64,
    pub(crate) offset: u64,
}

/// Reads on in a log of several files, the newest of which grows, is renamed, and is followed by another.
#[derive(Debug)]
pub(crate) struct Tail {
    format: Format,
    /// What is left of the log, oldest first. The last one stays open, so that no other file can be taken for it.
    files: VecDeque<File>,
    /// Their folder and when it was changed last, if those are all of its files for sure.
    settled: Option<(PathBuf, SystemTime)>,
    /// A line or a character without its end.
    unfinished: Vec<u8>,
}

impl Tail {
    pub(crate) const fn new(format: Format) -> Self {
        Self { format, files: VecDeque::new(), settled: None, unfinished: Vec::new() }
    }

    /// Adds those of a log's files that are newer than what it has. Fails if they are renamed meanwhile.
    pub(crate) fn open(&mut self, paths: &[PathBuf]) -> io::Result<()> {
        let folder = paths.last().and_then(|path| path.parent()).map(Path::to_owned);
        let modified = folder.as_deref().and_then(modified);
        let files = paths.iter().map(File::open).collect::<io::Result<Vec<_>>>()?;
        for (path, file) in paths.iter().zip(&files) {
            if identity(&path.metadata()?) != identity(&file.metadata()?) {
                return Err(io::ErrorKind::NotFound.into());
            }
        }
        let newest = self.files.back().map(File::metadata).transpose()?.map(|newest| identity(&newest));
        let mut known = 0;
        for (idx, file) in files.iter().enumerate() {
            if Some(identity(&file.metadata()?)) == newest {
                known = idx + 1;
            }
        }
        // One that is gone was older than all that are left.
        self.files.extend(files.into_iter().skip(known));
        let is_old = |at: &SystemTime| at.elapsed().is_ok_and(|age| age > SETTLED);
        self.settled = folder.zip(modified.filter(is_old));
        Ok(())
    }

    /// Whether there was no other file when its end was read.
    pub(crate) const fn is_settled(&self) -> bool {
        self.settled.is_some()
    }

    /// Some more; nothing if there is nothing at the moment.
    pub(crate) fn read(&mut self) -> Vec<u8> {
        let mut told = Vec::new();
        while told.is_empty() {
            match self.chunk() {
                Ok(chunk) if !chunk.is_empty() => self.take(&chunk, &mut told),
                // A disk that cannot be read has no more.
                Ok(_) | Err(_) => {
                    self.settled = self.settled.take().filter(|(folder, at)| modified(folder) == Some(*at));
                    break;
                }
            }
        }
        told
    }

    /// What has no end, if that was never written.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut told = Vec::new();
        if !self.unfinished.is_empty() {
            self.send(self.unfinished.len(), &mut told);
        }
        told
    }

    /// A message without text, which says where the log goes on.
    pub(crate) fn here(&self) -> Vec<u8> {
        match self.format {
            Format::Messages { replica } => {
                let position = self.position(self.unfinished.len());
                crate::text(&LogPiece { replica, position, text: String::new() }).into_bytes()
            }
            Format::Lines { .. } => Vec::new(),
        }
    }

    /// Leaves out all before a place. One that is not there any more was before everything that is.
    pub(crate) fn skip_to(&mut self, at: Position) -> io::Result<()> {
        for idx in 0..self.files.len() {
            if self.files[idx].metadata()?.ino() == at.file {
                self.files[idx].seek(SeekFrom::Start(at.offset))?;
                self.files.drain(..idx);
                break;
            }
        }
        Ok(())
    }

    /// Leaves out all but the last so many lines.
    pub(crate) fn skip_to_last(&mut self, lines: u64) -> io::Result<()> {
        let mut missing = lines;
        for idx in (0..self.files.len()).rev() {
            let file = &mut self.files[idx];
            match last_lines(file, missing)? {
                LastLines::From(offset) => {
                    file.seek(SeekFrom::Start(offset))?;
                    self.files.drain(..idx);
                    return Ok(());
                }
                LastLines::Counted(counted) => {
                    file.rewind()?;
                    missing -= counted;
                }
            }
        }
        Ok(())
    }

    /// The next bytes of the file that is being read, or of the one after it.
    fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let mut chunk = Vec::new();
        while let Some(file) = self.files.front_mut() {
            file.take(CHUNK_BYTES).read_to_end(&mut chunk)?;
            if !chunk.is_empty() || self.files.len() == 1 {
                break;
            }
            self.files.pop_front();
        }
        Ok(chunk)
    }

    fn take(&mut self, chunk: &[u8], told: &mut Vec<u8>) {
        if matches!(self.format, Format::Messages { .. }) {
            self.unfinished.extend_from_slice(chunk);
            return self.send(whole(&self.unfinished), told);
        }
        for part in chunk.split_inclusive(|&byte| byte == b'\n') {
            self.unfinished.extend_from_slice(part.strip_suffix(b"\n").unwrap_or(part));
            if part.ends_with(b"\n") {
                self.send(self.unfinished.len(), told);
            } else if self.unfinished.len() > LINE_BYTES_MAX {
                self.send(whole(&self.unfinished), told);
            }
        }
    }

    /// Tells so many of the bytes that wait.
    fn send(&mut self, bytes: usize, told: &mut Vec<u8>) {
        let waiting = self.unfinished.split_off(bytes);
        let text = String::from_utf8_lossy(&self.unfinished);
        match &self.format {
            Format::Lines { prefix } => told.extend([prefix.as_bytes(), text.as_bytes(), b"\n"].concat()),
            Format::Messages { .. } if text.is_empty() => {}
            &Format::Messages { replica } => {
                let piece = LogPiece { replica, position: self.position(waiting.len()), text: text.into_owned() };
                told.extend(crate::text(&piece).into_bytes());
            }
        }
        self.unfinished = waiting;
    }

    /// The place that so many bytes of what was read come after, as it is told.
    fn position(&self, waiting: usize) -> String {
        let place = self.files.front().and_then(|mut file| {
            let offset = file.stream_position().ok()?.saturating_sub(waiting as u64);
            Some(Position { file: file.metadata().ok()?.ino(), offset })
        });
        place.map_or_else(String::new, |Position { file, offset }| format!("{file}.{offset}"))
    }
}

/// How many of these bytes are whole characters: the last one may be cut. What is no text is whole.
fn whole(bytes: &[u8]) -> usize {
    let last = bytes.iter().rev().take(3).position(|&byte| byte >= 0xc0).map(|back| bytes.len() - 1 - back);
    let is_cut = |&start: &usize| {
        let length = bytes[start].leading_ones() as usize;
        length <= 4 && start + length > bytes.len()
    };
    last.filter(is_cut).unwrap_or(bytes.len())
}

fn identity(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn modified(folder: &Path) -> Option<SystemTime> {
    folder.metadata().and_then(|folder| folder.modified()).ok()
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
    use std::io::Write;

    use super::*;

    fn lines(prefix: &str) -> Tail {
        Tail::new(Format::Lines { prefix: prefix.to_owned() })
    }

    fn opened(tail: &mut Tail, files: &[&PathBuf]) {
        tail.open(&files.iter().map(|&file| file.clone()).collect::<Vec<_>>()).unwrap();
    }

    fn all(tail: &mut Tail) -> String {
        let lines = std::iter::from_fn(|| Some(tail.read()).filter(|lines| !lines.is_empty()));
        String::from_utf8(lines.flatten().collect()).unwrap()
    }

    fn append(file: &Path, text: &[u8]) {
        fs::OpenOptions::new().append(true).create(true).open(file).unwrap().write_all(text).unwrap();
    }

    #[test]
    fn a_log_is_read_on_through_renames_and_an_unfinished_line_waits_for_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let [old, log] = ["log.1", "log"].map(|name| folder.path().join(name));
        let mut tail = lines("7| ");
        append(&log, b"one\ntwo\nthr");
        opened(&mut tail, &[&log]);
        assert_eq!(all(&mut tail), "7| one\n7| two\n");
        append(&log, b"ee\n");
        fs::rename(&log, &old).unwrap();
        append(&log, b"four\n\xff\n");
        opened(&mut tail, &[&old, &log]);
        assert_eq!(all(&mut tail), "7| three\n7| four\n7| \u{fffd}\n");
        append(&log, b"end");
        assert_eq!(all(&mut tail), "");
        assert_eq!([tail.rest(), tail.rest()], [b"7| end\n".to_vec(), Vec::new()]);
    }

    #[test]
    fn files_that_are_new_are_read_from_their_start_though_the_one_before_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut tail = lines("");
        for text in ["one\n", "two\n", "three\n"] {
            // A file that nobody held open would often be followed by one of the same number.
            append(&log, text.as_bytes());
            opened(&mut tail, &[&log]);
            assert_eq!(all(&mut tail), text);
            fs::remove_file(&log).unwrap();
        }
        opened(&mut tail, &[]);
        assert_eq!(all(&mut tail), "");
    }

    #[test]
    fn a_folder_that_has_changed_is_to_be_listed_again() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        append(&log, b"one\n");
        let mut tail = lines("");
        opened(&mut tail, &[&log]);
        assert!(!tail.is_settled(), "another file may have come after the listing");
        File::open(folder.path()).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        opened(&mut tail, &[&log]);
        assert_eq!((all(&mut tail).as_str(), tail.is_settled()), ("one\n", true));
        append(&folder.path().join("log.1"), b"");
        assert_eq!((all(&mut tail).as_str(), tail.is_settled()), ("", false));
    }

    #[test]
    fn the_last_lines_are_found_across_files_and_chunks() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["log.1", "log"].map(|name| folder.path().join(name));
        let long = "x".repeat(200_000);
        fs::write(&files[0], format!("first\n{long}\n")).unwrap();
        fs::write(&files[1], "a\nb\nc").unwrap();
        let last = |count| {
            let mut tail = lines("");
            opened(&mut tail, &[&files[0], &files[1]]);
            tail.skip_to_last(count).unwrap();
            all(&mut tail) + &String::from_utf8(tail.rest()).unwrap()
        };
        assert_eq!(last(0), "");
        assert_eq!(last(2), "b\nc\n");
        assert_eq!(last(3), "a\nb\nc\n");
        assert_eq!(last(4).len(), 200_000 + 2 + 6, "a line that is longer than most is told in two");
        assert!(last(5).starts_with("first\n") && last(100) == last(5));
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        append(&log, format!("x{}\n", "ü".repeat(LINE_BYTES_MAX)).as_bytes());
        let mut tail = lines("");
        opened(&mut tail, &[&log]);
        let told = all(&mut tail);
        assert!(told.lines().count() > 1 && !told.contains('\u{fffd}'));
        assert_eq!(told.replace('\n', "").chars().count(), LINE_BYTES_MAX + 1);
    }

    #[test]
    fn messages_tell_what_has_no_end_yet_and_another_reader_goes_on_after_any_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let [old, log] = ["log.1", "log"].map(|name| folder.path().join(name));
        let read = |tail: &mut Tail| {
            let told = std::iter::from_fn(|| Some(tail.read()).filter(|told| !told.is_empty()));
            told.map(|piece| serde_json::from_slice::<LogPiece>(&piece).unwrap()).collect::<Vec<_>>()
        };
        let mut tail = Tail::new(Format::Messages { replica: 7 });
        append(&log, b"one\n10%\r20% \xc3");
        opened(&mut tail, &[&log]);
        let first = read(&mut tail);
        assert_eq!((first[0].replica, first[0].text.as_str(), first.len()), (7, "one\n10%\r20% ", 1));
        append(&log, b"\xbc\n");
        fs::rename(&log, &old).unwrap();
        append(&log, b"two \xff");
        opened(&mut tail, &[&old, &log]);
        let mut texts: Vec<String> = read(&mut tail).into_iter().map(|piece| piece.text).collect();
        texts.push(String::from_utf8(tail.rest()).unwrap());
        assert_eq!(texts, ["ü\n", "two \u{fffd}", ""]);
        let mut other = Tail::new(Format::Messages { replica: 7 });
        opened(&mut other, &[&old, &log]);
        let (file, offset) = first[0].position.split_once('.').unwrap();
        other.skip_to(Position { file: file.parse().unwrap(), offset: offset.parse().unwrap() }).unwrap();
        let again: Vec<String> = read(&mut other).into_iter().map(|piece| piece.text).collect();
        assert_eq!(again, texts[..2]);
    }
}
