use std::io::BufRead;

use pollux_api::Event;

use crate::ClientError;

/// Far above any event of ours.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Events as they come. It ends when the server ends it, or with the first error.
pub struct EventStream {
    url: String,
    lines: Box<dyn BufRead + Send>,
    ended: bool,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").field("url", &self.url).field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl EventStream {
    pub(crate) fn new(url: String, lines: Box<dyn BufRead + Send>) -> Self {
        Self { url, lines, ended: false }
    }

    /// The data of the next event; nothing at the end. Comments, numbers and names are passed over.
    fn next_data(&mut self) -> Result<Option<String>, ClientError> {
        let mut data = String::new();
        loop {
            let mut line = String::new();
            let mut limited = std::io::Read::take(&mut self.lines, LINE_BYTES_MAX);
            let read = limited.read_line(&mut line).map_err(|error| ClientError::of_stream(&self.url, &error))?;
            // Half an event is none: it will be told again.
            if read == 0 || !line.ends_with('\n') {
                return Ok(None);
            }
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() && !data.is_empty() {
                return Ok(Some(data));
            }
            if let Some(text) = line.strip_prefix("data:") {
                data += text.strip_prefix(' ').unwrap_or(text);
            }
        }
    }
}

impl Iterator for EventStream {
    type Item = Result<Event, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_data().and_then(|data| {
            let garbage =
                |error: serde_json::Error| ClientError::Garbage { url: self.url.clone(), reason: error.to_string() };
            data.map(|data| serde_json::from_str(&data).map_err(garbage)).transpose()
        });
        self.ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(text: &'static str) -> EventStream {
        EventStream::new("http://127.0.0.1:7878".to_owned(), Box::new(text.as_bytes()))
    }

    #[test]
    fn events_are_told_apart_and_comments_passed_over() {
        let text = ": here\n\nid: 4\ndata: {\"sequence\":4,\"at_ms\":1,\"job\":2,\"kind\":\"ready\",\n\
            data: \"text\":\"x\",\"detail\":null}\n\n:\n\nid:5\r\ndata:{\"sequence\":5,\"at_ms\":1,\"job\":null,\
            \"kind\":\"ready\",\"text\":\"y\",\"detail\":{}}\r\n\r\ndata: {\"sequence\":6,";
        let events: Vec<(u64, String)> =
            stream(text).map(|event| event.unwrap()).map(|it| (it.sequence, it.text)).collect();
        assert_eq!(events, [(4, "x".to_owned()), (5, "y".to_owned())]);
    }

    #[test]
    fn nonsense_ends_the_stream() {
        let mut events = stream("data: nonsense\n\ndata: {}\n\n");
        assert!(matches!(events.next(), Some(Err(ClientError::Garbage { .. }))));
        assert!(events.next().is_none());
    }
}
