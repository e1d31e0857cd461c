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
            if line.is_empty() && !message.data.is_empty() {
                return Ok(Some(message));
            }
            let field = |name: &str| line.strip_prefix(name).map(|text| text.strip_prefix(' ').unwrap_or(text));
            if let Some(text) = field("data:") {
                message.data += text;
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
