//! The logs of several replicas in the one log of their container: every line says whose it is, and between them stands how
//! far each is and how it ended.

use std::collections::BTreeMap;
use std::io::{self, Write};

use pollux_backend::ReplicaId;

use crate::{Ending, MARK_EVERY};

const TEXT: &str = "[replica ";
const TEXT_END: &str = "] ";
/// In the place of the above where the line goes on.
const PART_END: &str = "+] ";
const WRITTEN: &str = "[pollux: replica ";
const WRITTEN_MIDDLE: &str = " has written ";
const WRITTEN_END: &str = " bytes]";
const ENDED_MIDDLE: &str = " has ended after ";
const ENDED_END: &str = " bytes: ";

/// What a line of such a log says of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleLine<'a> {
    /// It wrote this.
    Text(&'a [u8]),
    /// It had written so much before.
    Written(u64),
    /// It ended after so much, in this way.
    Ended(u64, Ending),
}

/// Reads a line; `None` if it is cut, or nobody's.
pub fn bundle_line(line: &[u8]) -> Option<(ReplicaId, BundleLine<'_>)> {
    if let Some(rest) = line.strip_prefix(TEXT.as_bytes()) {
        let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
        let replica = number(&rest[..digits])?;
        let rest = &rest[digits..];
        let text = match rest.strip_prefix(PART_END.as_bytes()) {
            Some(part) => part.strip_suffix(b"\n").unwrap_or(part),
            None => rest.strip_prefix(TEXT_END.as_bytes())?,
        };
        return Some((replica, BundleLine::Text(text)));
    }
    let rest = str::from_utf8(line).ok()?.strip_prefix(WRITTEN)?.strip_suffix('\n')?;
    if let Some((replica, written)) = rest.split_once(WRITTEN_MIDDLE) {
        let written = written.strip_suffix(WRITTEN_END)?.parse().ok()?;
        return Some((ReplicaId(replica.parse().ok()?), BundleLine::Written(written)));
    }
    let (replica, end) = rest.split_once(ENDED_MIDDLE)?;
    let (written, ending) = end.split_once(ENDED_END)?;
    let ending = serde_json::from_str(ending.strip_suffix(']')?).ok()?;
    Some((ReplicaId(replica.parse().ok()?), BundleLine::Ended(written.parse().ok()?, ending)))
}

fn number(digits: &[u8]) -> Option<ReplicaId> {
    str::from_utf8(digits).ok()?.parse().ok().map(ReplicaId)
}

/// Writes such a log.
pub(crate) struct BundleLog<W> {
    log: W,
    replicas: BTreeMap<ReplicaId, (u64, Option<Ending>)>,
    /// Bytes since it was said how far each is.
    since_marks: u64,
}

impl<W: Write> BundleLog<W> {
    pub(crate) fn new(log: W, replicas: impl Iterator<Item = ReplicaId>) -> Self {
        // The first line is such a mark.
        Self { log, replicas: replicas.map(|id| (id, (0, None))).collect(), since_marks: MARK_EVERY }
    }

    /// Adds what a replica has written.
    pub(crate) fn write(&mut self, replica: ReplicaId, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.since_marks >= MARK_EVERY {
                self.mark()?;
            }
            let (tag_end, end) = if piece.ends_with(b"\n") { (TEXT_END, "") } else { (PART_END, "\n") };
            let tag = format!("{TEXT}{}{tag_end}", replica.0);
            let line = [tag.as_bytes(), piece, end.as_bytes()].concat();
            self.log.write_all(&line)?;
            self.since_marks += line.len() as u64;
            self.replicas.entry(replica).or_default().0 += piece.len() as u64;
        }
        self.log.flush()
    }

    /// Says how a replica ended, now and with every mark.
    pub(crate) fn end(&mut self, replica: ReplicaId, ending: Ending) -> io::Result<()> {
        self.replicas.entry(replica).or_default().1 = Some(ending);
        self.mark()
    }

    /// Says of each how far it is.
    fn mark(&mut self) -> io::Result<()> {
        self.since_marks = 0;
        for (replica, (written, ending)) in &self.replicas {
            let id = replica.0;
            let line = match ending {
                None => format!("{WRITTEN}{id}{WRITTEN_MIDDLE}{written}{WRITTEN_END}\n"),
                Some(ending) => {
                    let ending = serde_json::to_string(ending)?;
                    format!("{WRITTEN}{id}{ENDED_MIDDLE}{written}{ENDED_END}{ending}]\n")
                }
            };
            self.log.write_all(line.as_bytes())?;
        }
        self.log.flush()
    }

    /// All replicas, how each ended that has, and how much it wrote.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (ReplicaId, Option<&Ending>, u64)> {
        self.replicas.iter().map(|(id, (written, ending))| (*id, ending.as_ref(), *written))
    }
}

#[cfg(test)]
mod tests {
    use pollux_backend::Exit;

    use super::*;

    const A: ReplicaId = ReplicaId(17);
    const B: ReplicaId = ReplicaId(18);

    fn text(log: &[u8], of: ReplicaId) -> String {
        let lines = log.split_inclusive(|byte| *byte == b'\n').filter_map(bundle_line);
        let texts = lines.filter_map(|(id, line)| match line {
            BundleLine::Text(text) if id == of => Some(text),
            BundleLine::Text(_) | BundleLine::Written(_) | BundleLine::Ended(..) => None,
        });
        String::from_utf8(texts.collect::<Vec<_>>().concat()).expect("text")
    }

    #[test]
    fn each_replicas_bytes_come_back_as_they_were() {
        let mut log = BundleLog::new(Vec::new(), [A, B].into_iter());
        log.write(A, b"one\n50%").expect("memory");
        log.write(B, b"[replica 17] mine\n").expect("memory");
        log.write(A, b" done\nlast").expect("memory");
        log.end(B, Ending::Exited(Exit::Code(3))).expect("memory");
        let expected = "[pollux: replica 17 has written 0 bytes]\n[pollux: replica 18 has written 0 bytes]\n\
            [replica 17] one\n[replica 17+] 50%\n[replica 18] [replica 17] mine\n[replica 17]  done\n[replica 17+] last\n\
            [pollux: replica 17 has written 17 bytes]\n[pollux: replica 18 has ended after 18 bytes: {\"exited\":{\"code\":3}}]\n";
        assert_eq!(String::from_utf8_lossy(&log.log), expected);
        assert_eq!(text(&log.log, A), "one\n50% done\nlast");
        assert_eq!(text(&log.log, B), "[replica 17] mine\n");
        let last = expected.lines().last().map(|line| format!("{line}\n")).expect("a line");
        let ended = BundleLine::Ended(18, Ending::Exited(Exit::Code(3)));
        assert_eq!(bundle_line(last.as_bytes()), Some((B, ended)));
    }

    #[test]
    fn a_program_cannot_say_that_another_has_ended() {
        let mut log = BundleLog::new(Vec::new(), [A, B].into_iter());
        log.write(A, b"[pollux: replica 18 has ended after 0 bytes: {\"exited\":{\"code\":0}}]\n").expect("memory");
        let ended = |line: &[u8]| matches!(bundle_line(line), Some((_, BundleLine::Ended(..))));
        assert!(!log.log.split_inclusive(|byte| *byte == b'\n').any(ended));
    }

    #[test]
    fn of_a_silent_replica_it_is_said_how_far_it_is_while_others_write() {
        let mut log = BundleLog::new(Vec::new(), [A, B].into_iter());
        log.write(A, b"quiet\n").expect("memory");
        log.write(B, format!("{}\n", "x".repeat(1023)).repeat(130).as_bytes()).expect("memory");
        let of_a = |(id, line): (ReplicaId, _)| match line {
            BundleLine::Written(position) if id == A => Some(position),
            BundleLine::Text(_) | BundleLine::Written(_) | BundleLine::Ended(..) => None,
        };
        let lines = log.log.split_inclusive(|byte| *byte == b'\n').filter_map(bundle_line);
        assert_eq!(lines.filter_map(of_a).collect::<Vec<_>>(), [0, 6, 6]);
    }

    #[test]
    fn lines_that_are_cut_are_nobodys() {
        for cut in [
            "",
            "ica 17] x\n",
            "[replica ",
            "[replica 17",
            "[replica x] y\n",
            "[pollux: replica 17 has wr",
            "[pollux: replica 17 has written 6",
        ] {
            assert_eq!(bundle_line(cut.as_bytes()), None, "{cut}");
        }
        assert_eq!(bundle_line(b"[replica 17] wri"), Some((A, BundleLine::Text(b"wri"))));
    }
}
