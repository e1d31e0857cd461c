use pollux_api::LogPiece;

use crate::ClientError;
use crate::messages::Messages;

/// What replicas write, as it comes. It ends with the job, when the server ends it, or with the first error.
#[derive(Debug)]
pub struct LogStream {
    messages: Messages,
    has_broken: bool,
    has_begun: bool,
    job_has_ended: bool,
}

impl LogStream {
    pub(crate) fn new(messages: Messages) -> Self {
        Self { messages, has_broken: false, has_begun: false, job_has_ended: false }
    }

    /// Whether the server has said where it reads on in every replica's log.
    pub const fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether everything was read: the job has ended, and not only the server.
    pub const fn job_has_ended(&self) -> bool {
        self.job_has_ended
    }

    fn read(&mut self) -> Result<Option<LogPiece>, ClientError> {
        while let Some(message) = self.messages.next()? {
            match message.name.as_str() {
                "" => return self.messages.read(&message.data).map(Some),
                "begun" => self.has_begun = true,
                "end" => {
                    self.job_has_ended = true;
                    break;
                }
                // Later servers may say more.
                _ => {}
            }
        }
        Ok(None)
    }
}

impl Iterator for LogStream {
    type Item = Result<LogPiece, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_broken || self.job_has_ended {
            return None;
        }
        let next = self.read();
        self.has_broken = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(text: &'static str) -> LogStream {
        LogStream::new(Messages::new("http://127.0.0.1:7878".to_owned(), Box::new(text.as_bytes())))
    }

    #[test]
    fn the_end_of_the_job_is_told_apart_from_the_end_of_the_server() {
        const PIECE: &str = "data: {\"replica\":7,\"text\":\"a\\n\",\"position\":\"5.2\"}\n\n";
        let mut away = stream(PIECE);
        assert_eq!(away.by_ref().map(|piece| piece.unwrap().text).collect::<Vec<_>>(), ["a\n"]);
        assert!(!away.job_has_ended());
        let mut begun = stream("event: begun\ndata: {}\n\nevent: later\ndata: {}\n\n");
        assert!(begun.next().is_none() && begun.has_begun() && !begun.job_has_ended());
        let mut ended = stream("event: end\ndata: {}\n\ndata: {}\n\n");
        assert!(ended.next().is_none() && ended.job_has_ended());
    }
}
