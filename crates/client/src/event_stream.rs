use pollux_api::Event;

use crate::ClientError;
use crate::messages::Messages;

/// Events as they come. It ends when the server ends it, or with the first error.
#[derive(Debug)]
pub struct EventStream {
    messages: Messages,
    ended: bool,
}

impl EventStream {
    pub(crate) const fn new(messages: Messages) -> Self {
        Self { messages, ended: false }
    }

    fn read(&mut self) -> Result<Option<Event>, ClientError> {
        let message = self.messages.next()?;
        message.map(|message| self.messages.read(&message.data)).transpose()
    }
}

impl Iterator for EventStream {
    type Item = Result<Event, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.read();
        self.ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(text: &'static str) -> EventStream {
        EventStream::new(Messages::new("http://127.0.0.1:7878".to_owned(), Box::new(text.as_bytes())))
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
