use pollux_api::LogPiece;
use pollux_backend::{LogChunk, LogStart};

/// A longer line is told in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// How what is read is told.
#[derive(Debug)]
pub(crate) enum Format {
    /// Whole lines, each after this.
    Lines { prefix: String },
    /// Whatever there is of a replica, as pieces that also say where they end.
    Pieces { replica: u64 },
}

/// What is told of a log.
#[derive(Debug, Default)]
pub(crate) struct LogOutput {
    pub(crate) lines: Vec<u8>,
    pub(crate) pieces: Vec<LogPiece>,
}

/// Tells a log that is read piece by piece.
#[derive(Debug)]
pub(crate) struct Tail {
    format: Format,
    /// Where to read on.
    from: LogStart,
    /// The position after everything that was read.
    end: u64,
    has_ended: bool,
    /// Nothing can be read at the moment.
    is_unread: bool,
    /// A line or a character without its end.
    unfinished: Vec<u8>,
}

impl Tail {
    pub(crate) const fn new(format: Format, from: LogStart) -> Self {
        Self { format, from, end: 0, has_ended: false, is_unread: false, unfinished: Vec::new() }
    }

    /// Where to read on.
    pub(crate) const fn from(&self) -> LogStart {
        self.from
    }

    /// Whether nothing will ever follow.
    pub(crate) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Nothing can be read at the moment; tells whether that is new.
    pub(crate) const fn cannot_read(&mut self) -> bool {
        !std::mem::replace(&mut self.is_unread, true)
    }

    /// Takes the next piece of the log in, and returns what is told of it.
    pub(crate) fn take(&mut self, chunk: &LogChunk) -> LogOutput {
        self.is_unread = false;
        let mut told = if chunk.dropped > 0 { self.rest() } else { LogOutput::default() };
        // Who asked for the last lines is told where they end, though there are none.
        let is_found = matches!(self.from, LogStart::LastLines(_));
        (self.from, self.end, self.has_ended) = (LogStart::At(chunk.next), chunk.next, chunk.ended);
        match &self.format {
            &Format::Pieces { replica } => {
                self.unfinished.extend_from_slice(&chunk.bytes);
                self.send(whole(&self.unfinished), chunk.dropped, &mut told);
                if is_found && told.pieces.is_empty() {
                    let position = (self.end - self.unfinished.len() as u64).to_string();
                    told.pieces.push(LogPiece { replica, position, dropped: 0, text: String::new() });
                }
            }
            Format::Lines { prefix } => {
                if chunk.dropped > 0 {
                    told.lines
                        .extend(format!("{prefix}[{} bytes before this are not kept]\n", chunk.dropped).into_bytes());
                }
                self.take_lines(&chunk.bytes, &mut told);
            }
        }
        told
    }

    /// Says to whoever reads lines why there are none.
    pub(crate) fn excuse(&self, reason: &str) -> LogOutput {
        let lines = match &self.format {
            Format::Lines { prefix } => format!("{prefix}[{reason}]\n").into_bytes(),
            Format::Pieces { .. } => Vec::new(),
        };
        LogOutput { lines, pieces: Vec::new() }
    }

    /// What has no end, if that was never written.
    pub(crate) fn rest(&mut self) -> LogOutput {
        let mut told = LogOutput::default();
        if !self.unfinished.is_empty() {
            self.send(self.unfinished.len(), 0, &mut told);
        }
        told
    }

    fn take_lines(&mut self, bytes: &[u8], told: &mut LogOutput) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.unfinished.extend_from_slice(part.strip_suffix(b"\n").unwrap_or(part));
            if part.ends_with(b"\n") {
                self.send(self.unfinished.len(), 0, told);
            } else if self.unfinished.len() > LINE_BYTES_MAX {
                self.send(whole(&self.unfinished), 0, told);
            }
        }
    }

    /// Tells so many of the bytes that wait.
    fn send(&mut self, bytes: usize, dropped: u64, told: &mut LogOutput) {
        let waiting = self.unfinished.split_off(bytes);
        let text = String::from_utf8_lossy(&self.unfinished);
        match &self.format {
            Format::Lines { prefix } => told.lines.extend([prefix.as_bytes(), text.as_bytes(), b"\n"].concat()),
            Format::Pieces { .. } if text.is_empty() && dropped == 0 => {}
            &Format::Pieces { replica } => {
                let position = (self.end - waiting.len() as u64).to_string();
                told.pieces.push(LogPiece { replica, position, dropped, text: text.into_owned() });
            }
        }
        self.unfinished = waiting;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a log that is whole, in pieces of some size.
    fn told(tail: &mut Tail, log: &[u8], bytes_max: usize) -> LogOutput {
        let mut told = LogOutput::default();
        loop {
            let LogStart::At(at) = tail.from() else { unreachable!("a test begins somewhere") };
            let rest = log.get(at as usize..).unwrap_or_default();
            let bytes = rest[..rest.len().min(bytes_max)].to_vec();
            if bytes.is_empty() {
                return told;
            }
            let next = at + bytes.len() as u64;
            let LogOutput { lines, pieces } = tail.take(&LogChunk { bytes, next, dropped: 0, ended: false });
            told.lines.extend(lines);
            told.pieces.extend(pieces);
        }
    }

    fn text(told: LogOutput) -> String {
        String::from_utf8(told.lines).unwrap()
    }

    #[test]
    fn what_cannot_be_read_is_said_once_until_it_can_be() {
        let mut tail = lines("0 ");
        assert_eq!((tail.cannot_read(), tail.cannot_read()), (true, false));
        assert_eq!(tail.excuse("gpu1 does not answer").lines, b"0 [gpu1 does not answer]\n");
        tail.take(&LogChunk { bytes: Vec::new(), next: 0, dropped: 0, ended: false });
        assert!(tail.cannot_read());
    }

    fn lines(prefix: &str) -> Tail {
        Tail::new(Format::Lines { prefix: prefix.to_owned() }, LogStart::At(0))
    }

    #[test]
    fn an_unfinished_line_waits_for_its_end() {
        for bytes_max in [1, 5, 100] {
            let mut tail = lines("7| ");
            assert_eq!(text(told(&mut tail, b"one\ntwo\nthr", bytes_max)), "7| one\n7| two\n");
            let log = b"one\ntwo\nthree\n\xff\nend";
            assert_eq!(text(told(&mut tail, log, bytes_max)), "7| three\n7| \u{fffd}\n");
            assert_eq!([text(tail.rest()), text(tail.rest())], ["7| end\n", ""]);
        }
    }

    #[test]
    fn what_was_dropped_is_said() {
        let mut tail = lines("7| ");
        assert_eq!(text(told(&mut tail, b"cut", 100)), "");
        let gap = LogChunk { bytes: b"on\n".to_vec(), next: 103, dropped: 97, ended: true };
        assert_eq!(text(tail.take(&gap)), "7| cut\n7| [97 bytes before this are not kept]\n7| on\n");
        assert!(tail.has_ended());
        let mut messages = Tail::new(Format::Pieces { replica: 7 }, LogStart::At(3));
        let piece = LogPiece { replica: 7, text: "on\n".to_owned(), position: "103".to_owned(), dropped: 97 };
        assert_eq!(messages.take(&gap).pieces, [piece]);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let log = format!("x{}\n", "ü".repeat(LINE_BYTES_MAX));
        let told = text(told(&mut lines(""), log.as_bytes(), 64 * 1024));
        assert!(told.lines().count() > 1 && !told.contains('\u{fffd}'));
        assert_eq!(told.replace('\n', "").chars().count(), LINE_BYTES_MAX + 1);
    }

    #[test]
    fn messages_tell_what_has_no_end_yet_and_another_reader_goes_on_after_any_of_them() {
        let messages = |at| Tail::new(Format::Pieces { replica: 7 }, LogStart::At(at));
        let log = b"one\n10%\r20% \xc3\xbc\ntwo \xff";
        let mut tail = messages(0);
        let first = told(&mut tail, &log[..13], 100).pieces;
        assert_eq!((first[0].replica, first[0].text.as_str(), first.len()), (7, "one\n10%\r20% ", 1));
        let texts: Vec<String> = told(&mut tail, log, 100).pieces.into_iter().map(|piece| piece.text).collect();
        assert_eq!((texts.as_slice(), tail.rest().pieces.len()), (["ü\ntwo \u{fffd}".to_owned()].as_slice(), 0));
        let again = told(&mut messages(first[0].position.parse().unwrap()), log, 100).pieces;
        assert_eq!(again[0].text, texts[0]);
    }

    #[test]
    fn who_asks_for_the_last_lines_is_told_where_they_end_though_there_are_none() {
        let mut tail = Tail::new(Format::Pieces { replica: 7 }, LogStart::LastLines(0));
        let nothing = LogChunk { bytes: Vec::new(), next: 42, dropped: 0, ended: false };
        let [here, then] = [tail.take(&nothing), tail.take(&nothing)];
        assert_eq!((here.pieces[0].position.as_str(), here.pieces[0].text.as_str()), ("42", ""));
        assert!(then.pieces.is_empty(), "once");
    }
}
