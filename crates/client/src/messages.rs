use std::io::BufRead;

use serde::de::DeserializeOwned;

use crate::ClientError;

/// Far above any message of ours.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Server-sent events, whatever they are about.
pub(crate) struct Messages {
    url: String,
    lines: Box<dyn BufRead + Send>,
}

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Messages").field("url", &self.url).finish_non_exhaustive()
    }
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// What it is called; most are not.
    pub(crate) name: String,
    pub(crate) data: String,
}

impl Messages {
    pub(crate) fn new(url: String, lines: Box<dyn BufRead + Send>) -> Self {
        Self { url, lines }
    }

    /// The next one; nothing at the end. Comments and numbers are passed over.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, ClientError> {
        let mut message = Message::default();
        loop {
            let mut line = String::new();
            let mut limited = std::io::Read::take(&mut self.lines, LINE_BYTES_MAX);
            let read = limited.read_line(&mut line).map_err(|error| ClientError::of_stream(&self.url, &error))?;
            // Half a message is none: it will be told again.
            if read == 0 || !line.ends_with('\n') {
                return Ok(None);
            }
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                // Every line of data ends with a break, of which the last does not count.
                if message.data.pop().is_some() {
                    return Ok(Some(message));
                }
                message = Message::default();
            }
            let field = |name: &str| line.strip_prefix(name).map(|text| text.strip_prefix(' ').unwrap_or(text));
            if let Some(text) = field("data:") {
                message.data += text;
                message.data.push('\n');
            }
            if let Some(text) = field("event:") {
                text.clone_into(&mut message.name);
            }
        }
    }

    /// What a message says.
    pub(crate) fn read<T: DeserializeOwned>(&self, data: &str) -> Result<T, ClientError> {
        let garbage =
            |error: serde_json::Error| ClientError::Garbage { url: self.url.clone(), reason: error.to_string() };
        serde_json::from_str(data).map_err(garbage)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn messages_are_read_as_the_standard_says() {
        let text =
            ": a comment\nevent: left out\n\ndata: one\ndata:two\nid: 7\n\nevent: end\r\ndata:  {}\r\n\r\ndata: half";
        let mut messages = Messages::new(String::new(), Box::new(Cursor::new(text)));
        let mut next = || messages.next().unwrap().map(|message| (message.name, message.data));
        assert_eq!(next(), Some((String::new(), "one\ntwo".to_owned())));
        assert_eq!(next(), Some(("end".to_owned(), " {}".to_owned())));
        assert_eq!(next(), None);
    }
}
