use std::collections::BTreeMap;
use std::io::{self, Read};

use pollux_client::{Client, ClientError, LogQuery};

use super::patience::Patience;
use super::text::has_ended;

/// Reads what a job writes until it has ended. When the server comes back after it was away, logs are read from their
/// start and told from where they broke off; if only the last lines were asked for, what was written meanwhile is left
/// out.
pub(super) fn follow(
    client: &Client,
    id: u64,
    query: LogQuery,
    show: &mut dyn FnMut(Vec<u8>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut query = LogQuery { follow: true, ..query };
    let mut lines = LogLines { has_prefixes: query.replica.is_none(), ..LogLines::default() };
    let mut patience = Patience::default();
    loop {
        match client.logs(id, query) {
            Ok(mut logs) => {
                patience.renew();
                read_on(client, &mut logs, &mut lines, show)?;
            }
            Err(error) if error.is_passing() => {}
            Err(error) => return Err(error.into()),
        }
        // Logs that are followed end with their job. If that goes on, it is the server that has ended.
        match client.job(id) {
            Ok(detail) if has_ended(detail.job.phase) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.is_passing() => {}
            Err(error) => return Err(error.into()),
        }
        patience.wait(client)?;
        match &mut query.tail {
            Some(tail) => *tail = 0,
            None => lines.begin_again(),
        }
    }
}

fn read_on(
    client: &Client,
    logs: &mut dyn Read,
    lines: &mut LogLines,
    show: &mut dyn FnMut(Vec<u8>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        match logs.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(length) => show(lines.take(&bytes[..length]))?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => match client.broken_stream(&error) {
                // A server that is killed ends its answers in their middle.
                ClientError::Away { .. } | ClientError::Garbage { .. } => return Ok(()),
                other => return Err(other.into()),
            },
        }
    }
}

/// Whole lines of logs, each told once though they are read again from their start.
#[derive(Debug, Default)]
struct LogLines {
    /// Whether each begins with the number of its replica.
    has_prefixes: bool,
    /// How many were told, by that number.
    told: BTreeMap<Vec<u8>, u64>,
    /// How many of them will be read again.
    known: BTreeMap<Vec<u8>, u64>,
    /// A line without its end.
    unfinished: Vec<u8>,
}

impl LogLines {
    fn begin_again(&mut self) {
        self.known.clone_from(&self.told);
        self.unfinished.clear();
    }

    /// Those that are new.
    fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut new = Vec::new();
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.unfinished.extend_from_slice(part);
            if !part.ends_with(b"\n") {
                break;
            }
            let bar = self.unfinished.iter().position(|&byte| byte == b'|').filter(|_| self.has_prefixes);
            let replica = self.unfinished[..bar.unwrap_or(0)].to_vec();
            match self.known.get_mut(&replica).filter(|known| **known > 0) {
                Some(known) => *known -= 1,
                None => {
                    new.extend_from_slice(&self.unfinished);
                    *self.told.entry(replica).or_default() += 1;
                }
            }
            self.unfinished.clear();
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_read_again_are_told_once() {
        let mut lines = LogLines { has_prefixes: true, ..LogLines::default() };
        let take = |lines: &mut LogLines, text: &str| String::from_utf8(lines.take(text.as_bytes())).unwrap();
        assert_eq!(take(&mut lines, "1| a\n2| a\n1| b"), "1| a\n2| a\n");
        assert_eq!(take(&mut lines, "\n1| br"), "1| b\n");
        lines.begin_again();
        assert_eq!(take(&mut lines, "1| a\n1| b\n1| broken\n"), "1| broken\n");
        assert_eq!(take(&mut lines, "2| a\n2| a\n3| a\n"), "2| a\n3| a\n");
        lines.begin_again();
        assert_eq!(take(&mut lines, "1| a\n1| b\n1| broken\n2| a\n2| a\n3| a\n4| a\n"), "4| a\n");
        let mut single = LogLines::default();
        assert_eq!(take(&mut single, "x| a\n"), "x| a\n");
        single.begin_again();
        assert_eq!(take(&mut single, "x| a\ny| b\n"), "y| b\n");
    }
}
