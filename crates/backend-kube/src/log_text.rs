//! Positions in a log that a kubelet keeps, which drops the oldest bytes without a word: at the beginning and now and then the
//! supervisor says how many it has written.

use pollux_backend::{LogChunk, LogStart, ReplicaId};
use pollux_supervisor::{BundleLine, bundle_line, position_of};

/// What is kept of a log, without marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogText {
    /// The position of the first byte.
    pub(crate) start: u64,
    pub(crate) bytes: Vec<u8>,
}

impl LogText {
    /// Reads what a kubelet keeps. `written` is what a supervisor that has ended says it wrote. `None` where all marks were
    /// dropped and no other has come since.
    pub(crate) fn read(kept: &[u8], written: Option<u64>) -> Option<Self> {
        let (mut bytes, mut start) = (Vec::with_capacity(kept.len()), None);
        for line in kept.split_inclusive(|byte| *byte == b'\n') {
            match position_of(line) {
                Some(position) => {
                    start.get_or_insert(position.saturating_sub(bytes.len() as u64));
                }
                None => bytes.extend_from_slice(line),
            }
        }
        let start = start.or_else(|| Some(written?.saturating_sub(bytes.len() as u64)))?;
        if let Some(written) = written {
            // A last line without an end was given one.
            bytes.truncate(usize::try_from(written.saturating_sub(start)).unwrap_or(usize::MAX));
        }
        Some(Self { start, bytes })
    }

    /// Reads what a kubelet keeps of several replicas: the log of one, and how much it had written when it ended, if it has.
    pub(crate) fn read_of(kept: &[u8], of: ReplicaId, written: Option<u64>) -> (Option<Self>, Option<u64>) {
        let (mut bytes, mut start, mut ended): (Vec<u8>, _, _) = (Vec::new(), None, None);
        let lines = kept.split_inclusive(|byte| *byte == b'\n').filter_map(bundle_line);
        for line in lines.filter(|(replica, _)| *replica == of).map(|(_, line)| line) {
            let position = match line {
                BundleLine::Text(text) => {
                    bytes.extend_from_slice(text);
                    continue;
                }
                BundleLine::Written(position) => position,
                BundleLine::Ended(position, _) => {
                    ended = Some(position);
                    position
                }
            };
            start.get_or_insert(position.saturating_sub(bytes.len() as u64));
        }
        let written = written.or(ended);
        let start = start.or_else(|| Some(written?.saturating_sub(bytes.len() as u64)));
        (start.map(|start| Self { start, bytes }), ended)
    }

    /// The position after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// A piece of it.
    pub(crate) fn chunk(&self, from: LogStart, bytes_max: usize, has_ended: bool) -> LogChunk {
        let end = self.end();
        let (asked, is_exact) = match from {
            LogStart::At(position) => (position, true),
            LogStart::LastLines(lines) => (self.start + self.before_last(lines) as u64, false),
        };
        let dropped = if is_exact { self.start.saturating_sub(asked) } else { 0 };
        let first = asked.clamp(self.start, end);
        let rest = &self.bytes[usize::try_from(first - self.start).unwrap_or(usize::MAX)..];
        let piece = &rest[..rest.len().min(bytes_max)];
        let next = if asked > end { asked } else { first + piece.len() as u64 };
        LogChunk { bytes: piece.to_vec(), next, dropped, ended: has_ended && piece.len() == rest.len() }
    }

    /// Where the last lines begin.
    fn before_last(&self, lines: u64) -> usize {
        if lines == 0 {
            return self.bytes.len();
        }
        let body = self.bytes.strip_suffix(b"\n").unwrap_or(&self.bytes);
        let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(idx, _)| idx + 1);
        let nth = usize::try_from(lines - 1).unwrap_or(usize::MAX);
        ends.into_iter().nth(nth).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use pollux_supervisor::mark;

    use super::*;

    fn text(start: u64, bytes: &str) -> Option<LogText> {
        Some(LogText { start, bytes: bytes.as_bytes().to_vec() })
    }

    #[test]
    fn marks_are_left_out_and_tell_where_the_rest_is() {
        let kept = format!("ab\ncd\n{}ef\n", mark(100));
        assert_eq!(LogText::read(kept.as_bytes(), None), text(94, "ab\ncd\nef\n"));
        let whole = format!("{}ab\n", mark(0));
        assert_eq!(LogText::read(whole.as_bytes(), None), text(0, "ab\n"));
    }

    #[test]
    fn a_last_line_without_an_end_stays_so() {
        let kept = format!("{}ab\nc\n", mark(0));
        assert_eq!(LogText::read(kept.as_bytes(), Some(4)), text(0, "ab\nc"));
    }

    #[test]
    fn a_log_whose_marks_were_dropped_is_the_end_once_that_is_known() {
        assert_eq!(LogText::read(b"z\n", None), None);
        assert_eq!(LogText::read(b"z\n", Some(1009)), text(1007, "z\n"));
    }

    #[test]
    fn of_several_replicas_each_has_a_log_of_its_own_also_where_its_beginning_was_dropped() {
        let kept = b"lf a line\n[replica 17] one\n[replica 18+] tw\n[replica 18] o\n[pollux: replica 17 has written 104 bytes]\n\
            [pollux: replica 18 has ended after 4 bytes: {\"exited\":{\"code\":0}}]\n[replica 17+] half";
        let of = |id| LogText::read_of(kept, ReplicaId(id), None);
        assert_eq!(of(17), (text(100, "one\nhalf"), None));
        assert_eq!(of(18), (text(0, "two\n"), Some(4)));
        assert_eq!(of(19), (None, None));
        assert_eq!(LogText::read_of(b"", ReplicaId(19), Some(7)), (text(7, ""), None));
    }

    #[test]
    fn bytes_that_are_no_text_are_kept_and_characters_cut_in_two_made_whole() {
        let kept =
            b"[pollux: replica 7 has written 0 bytes]\n[replica 7+] caf\xc3\n[replica 8] \xff\n[replica 7] \xa9\n";
        let of = |id| LogText::read_of(kept, ReplicaId(id), Some(2)).0.map(|text| text.bytes);
        assert_eq!((of(7), of(8)), (Some("caf\u{e9}\n".as_bytes().to_vec()), Some(b"\xff\n".to_vec())));
        let alone = [mark(0).as_bytes(), b"\xff\xc3\n"].concat();
        assert_eq!(LogText::read(&alone, None), Some(LogText { start: 0, bytes: b"\xff\xc3\n".to_vec() }));
    }

    #[test]
    fn pieces_and_last_lines_are_found() {
        let log = LogText { start: 10, bytes: b"a\nb\nc".to_vec() };
        let chunk = |from, max| log.chunk(from, max, true);
        let at = chunk(LogStart::At(0), 2);
        assert_eq!((at.bytes.as_slice(), at.next, at.dropped, at.ended), (&b"a\n"[..], 12, 10, false));
        let end = chunk(LogStart::At(12), 100);
        assert_eq!((end.bytes.as_slice(), end.next, end.dropped, end.ended), (&b"b\nc"[..], 15, 0, true));
        let beyond = chunk(LogStart::At(99), 100);
        assert!(beyond.bytes.is_empty() && beyond.ended && beyond.next == 99);
        for (lines, expected) in [(0, ""), (1, "c"), (2, "b\nc"), (9, "a\nb\nc")] {
            let last = chunk(LogStart::LastLines(lines), 100);
            assert_eq!((String::from_utf8_lossy(&last.bytes).as_ref(), last.dropped), (expected, 0));
        }
        assert!(!log.chunk(LogStart::At(15), 100, false).ended);
    }
}
