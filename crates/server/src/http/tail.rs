use pollux_api::LogPiece;
use pollux_backend::{LogChunk, LogStart};

/// A longer line is told in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// How what is read is told.
#[derive(Debug)]
pub(crate) enum Format {
    /// Whole lines, each after this.
    Lines { prefix: String },
    /// Whatever there is of a replica, as messages that also say where they end.
    Messages { replica: u64 },
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
    /// A line or a character without its end.
    unfinished: Vec<u8>,
}

impl Tail {
    pub(crate) const fn new(format: Format, from: LogStart) -> Self {
        Self { format, from, end: 0, has_ended: false, unfinished: Vec::new() }
    }

    /// Where to read on.
    pub(crate) const fn from(&self) -> LogStart {
        self.from
    }

    /// Whether nothing will ever follow.
    pub(crate) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes the next piece of the log in, and returns what is told of it.
    pub(crate) fn take(&mut self, chunk: &LogChunk) -> Vec<u8> {
        let mut told = if chunk.dropped > 0 { self.rest() } else { Vec::new() };
        (self.from, self.end, self.has_ended) = (LogStart::At(chunk.next), chunk.next, chunk.ended);
        match &self.format {
            Format::Messages { .. } => {
                self.unfinished.extend_from_slice(&chunk.bytes);
                self.send(whole(&self.unfinished), chunk.dropped, &mut told);
            }
            Format::Lines { prefix } => {
                if chunk.dropped > 0 {
                    told.extend(format!("{prefix}[{} bytes before this are not kept]\n", chunk.dropped).into_bytes());
                }
                self.take_lines(&chunk.bytes, &mut told);
            }
        }
        told
    }

    /// What has no end, if that was never written.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut told = Vec::new();
        if !self.unfinished.is_empty() {
            self.send(self.unfinished.len(), 0, &mut told);
        }
        told
    }

    fn take_lines(&mut self, bytes: &[u8], told: &mut Vec<u8>) {
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
    fn send(&mut self, bytes: usize, dropped: u64, told: &mut Vec<u8>) {
        let waiting = self.unfinished.split_off(bytes);
        let text = String::from_utf8_lossy(&self.unfinished);
        match &self.format {
            Format::Lines { prefix } => told.extend([prefix.as_bytes(), text.as_bytes(), b"\n"].concat()),
            Format::Messages { .. } if text.is_empty() && dropped == 0 => {}
            &Format::Messages { replica } => {
                let position = (self.end - waiting.len() as u64).to_string();
                let piece = LogPiece { replica, position, dropped, text: text.into_owned() };
                told.extend(format!("data: {}\n\n", crate::text(&piece)).into_bytes());
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
    fn told(tail: &mut Tail, log: &[u8], bytes_max: usize) -> String {
        let mut told = Vec::new();
        loop {
            let LogStart::At(at) = tail.from() else { unreachable!("a test begins somewhere") };
            let rest = log.get(at as usize..).unwrap_or_default();
            let bytes = rest[..rest.len().min(bytes_max)].to_vec();
            if bytes.is_empty() {
                return String::from_utf8(told).unwrap();
            }
            let next = at + bytes.len() as u64;
            told.extend(tail.take(&LogChunk { bytes, next, dropped: 0, ended: false }));
        }
    }

    fn lines(prefix: &str) -> Tail {
        Tail::new(Format::Lines { prefix: prefix.to_owned() }, LogStart::At(0))
    }

    fn pieces(told: &str) -> Vec<LogPiece> {
        let messages = told.split_terminator("\n\n").map(|message| message.strip_prefix("data: ").unwrap());
        messages.map(|piece| serde_json::from_str(piece).unwrap()).collect()
    }

    #[test]
    fn an_unfinished_line_waits_for_its_end() {
        for bytes_max in [1, 5, 100] {
            let mut tail = lines("7| ");
            assert_eq!(told(&mut tail, b"one\ntwo\nthr", bytes_max), "7| one\n7| two\n");
            let log = b"one\ntwo\nthree\n\xff\nend";
            assert_eq!(told(&mut tail, log, bytes_max), "7| three\n7| \u{fffd}\n");
            assert_eq!([tail.rest(), tail.rest()], [b"7| end\n".to_vec(), Vec::new()]);
        }
    }

    #[test]
    fn what_was_dropped_is_said() {
        let mut tail = lines("7| ");
        assert_eq!(told(&mut tail, b"cut", 100), "");
        let gap = LogChunk { bytes: b"on\n".to_vec(), next: 103, dropped: 97, ended: true };
        assert_eq!(tail.take(&gap), b"7| cut\n7| [97 bytes before this are not kept]\n7| on\n");
        assert!(tail.has_ended());
        let mut messages = Tail::new(Format::Messages { replica: 7 }, LogStart::At(3));
        let told = String::from_utf8(messages.take(&gap)).unwrap();
        let piece = LogPiece { replica: 7, text: "on\n".to_owned(), position: "103".to_owned(), dropped: 97 };
        assert_eq!(pieces(&told), [piece]);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let log = format!("x{}\n", "ü".repeat(LINE_BYTES_MAX));
        let told = told(&mut lines(""), log.as_bytes(), 64 * 1024);
        assert!(told.lines().count() > 1 && !told.contains('\u{fffd}'));
        assert_eq!(told.replace('\n', "").chars().count(), LINE_BYTES_MAX + 1);
    }

    #[test]
    fn messages_tell_what_has_no_end_yet_and_another_reader_goes_on_after_any_of_them() {
        let messages = |at| Tail::new(Format::Messages { replica: 7 }, LogStart::At(at));
        let log = b"one\n10%\r20% \xc3\xbc\ntwo \xff";
        let mut tail = messages(0);
        let first = pieces(&told(&mut tail, &log[..13], 100));
        assert_eq!((first[0].replica, first[0].text.as_str(), first.len()), (7, "one\n10%\r20% ", 1));
        let mut texts: Vec<String> = pieces(&told(&mut tail, log, 100)).into_iter().map(|piece| piece.text).collect();
        texts.push(String::from_utf8(tail.rest()).unwrap());
        assert_eq!(texts, ["ü\ntwo \u{fffd}", ""]);
        let again = pieces(&told(&mut messages(first[0].position.parse().unwrap()), log, 100));
        assert_eq!(again[0].text, texts[0]);
    }
}
