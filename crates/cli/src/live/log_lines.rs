use std::collections::BTreeMap;

use pollux_api::LogPiece;
use pollux_client::{Client, ClientError, LogQuery, LogStream};

use super::reconnect::Reconnect;

/// A longer line is told in pieces.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Reads what a job writes until it has ended. When the server comes back after it was away, each log is read on from
/// where it broke off.
pub(super) fn follow(
    client: &Client,
    id: u64,
    mut query: LogQuery,
    show: &mut dyn FnMut(Vec<u8>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut lines = LogLines { has_prefixes: query.replica.is_none(), ..LogLines::default() };
    let mut reconnect = Reconnect::default();
    loop {
        match client.log_stream(id, query, &lines.positions) {
            Ok(mut stream) => {
                reconnect.renew();
                read_on(&mut stream, &mut lines, show)?;
                if stream.has_begun() {
                    // Whatever comes after the last lines is news.
                    query.tail = None;
                }
                if stream.job_has_ended() {
                    return show(lines.rest());
                }
            }
            Err(error) if error.is_passing() => {}
            Err(error) => return Err(error.into()),
        }
        reconnect.wait(client)?;
    }
}

fn read_on(
    stream: &mut LogStream,
    lines: &mut LogLines,
    show: &mut dyn FnMut(Vec<u8>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for piece in stream {
        match piece {
            Ok(piece) => show(lines.take(piece))?,
            // A server that is killed ends its answers in their middle.
            Err(ClientError::Away { .. } | ClientError::Garbage { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whole lines, of pieces that begin and end anywhere in them.
#[derive(Debug, Default)]
struct LogLines {
    /// Whether each begins with the number of its replica.
    has_prefixes: bool,
    /// Where each replica's log goes on.
    positions: BTreeMap<u64, String>,
    /// Lines without their ends, by replica.
    unfinished: BTreeMap<u64, String>,
}

impl LogLines {
    /// Those that have come to their end.
    fn take(&mut self, piece: LogPiece) -> Vec<u8> {
        let LogPiece { replica, text, position, dropped } = piece;
        if !position.is_empty() {
            self.positions.insert(replica, position);
        }
        let mut lines = Vec::new();
        if dropped > 0 {
            if self.unfinished.contains_key(&replica) {
                self.end_line(replica, &mut lines);
            }
            self.unfinished.insert(replica, format!("[{dropped} bytes before this are not kept]"));
            self.end_line(replica, &mut lines);
        }
        for part in text.split_inclusive('\n') {
            let line = self.unfinished.entry(replica).or_default();
            line.push_str(part);
            if part.ends_with('\n') || line.len() > LINE_BYTES_MAX {
                self.end_line(replica, &mut lines);
            }
        }
        lines
    }

    /// What will never come to its end.
    fn rest(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        for replica in self.unfinished.keys().copied().collect::<Vec<_>>() {
            self.end_line(replica, &mut lines);
        }
        lines
    }

    fn end_line(&mut self, replica: u64, lines: &mut Vec<u8>) {
        let line = self.unfinished.remove(&replica).unwrap_or_default();
        if self.has_prefixes {
            lines.extend(format!("{replica}| ").into_bytes());
        }
        lines.extend(line.trim_end_matches('\n').as_bytes());
        lines.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(replica: u64, text: &str, position: &str, dropped: u64) -> LogPiece {
        LogPiece { replica, text: text.to_owned(), position: position.to_owned(), dropped }
    }

    #[test]
    fn pieces_of_several_replicas_become_lines_of_each() {
        let mut lines = LogLines { has_prefixes: true, ..LogLines::default() };
        let mut take = |replica, text: &str, position: &str| {
            String::from_utf8(lines.take(piece(replica, text, position, 0))).unwrap()
        };
        assert_eq!(take(1, "a\nb", "5.3"), "1| a\n");
        assert_eq!(take(2, "x\ny\n\n", "6.5"), "2| x\n2| y\n2| \n");
        assert_eq!(take(1, "c\r50%\n", "5.9"), "1| bc\r50%\n");
        assert_eq!(take(2, "", ""), "");
        assert_eq!(take(2, "end", "6.8"), "");
        assert_eq!(lines.positions, BTreeMap::from([(1, "5.9".to_owned()), (2, "6.8".to_owned())]));
        let gap = String::from_utf8(lines.take(piece(2, "on\nen", "9.9", 97))).unwrap();
        assert_eq!(gap, "2| end\n2| [97 bytes before this are not kept]\n2| on\n");
        assert_eq!([lines.rest(), lines.rest()], [b"2| en\n".to_vec(), Vec::new()]);
    }

    #[test]
    fn a_line_that_never_ends_is_told_in_pieces() {
        let mut lines = LogLines::default();
        let told = lines.take(piece(1, &"x".repeat(LINE_BYTES_MAX + 1), "", 0));
        assert_eq!((told.len(), lines.unfinished.len()), (LINE_BYTES_MAX + 2, 0));
    }
}
