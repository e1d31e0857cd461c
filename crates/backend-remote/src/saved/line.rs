//! Asking the other side for files, and waiting for what it says.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::protocol::{SavedAnswer, SavedAsk};

/// What an answer may take. The longest is the digest of a large file, and whoever is gone is noticed earlier.
const ANSWER_MAX: Duration = Duration::from_secs(600);

/// The end of a connection at which threads ask; whoever waits is told when it is dropped.
#[derive(Debug)]
pub(crate) struct LineEnd(Arc<Line>);

/// What threads ask by.
pub(crate) struct Line {
    send: Box<dyn Fn(u64, SavedAsk) + Send + Sync>,
    /// `None` once the connection is over.
    waiting: Mutex<Option<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    answers: BTreeMap<u64, SyncSender<SavedAnswer>>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

impl LineEnd {
    /// Questions go out by `send`, each with its number.
    pub(crate) fn new(send: impl Fn(u64, SavedAsk) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Line { send: Box::new(send), waiting: Mutex::new(Some(Waiting::default())) }))
    }

    pub(crate) fn line(&self) -> Arc<Line> {
        Arc::clone(&self.0)
    }

    /// The other side has answered.
    pub(crate) fn answered(&self, request: u64, answer: SavedAnswer) {
        let waiting = self.0.with(|waiting| waiting.answers.remove(&request)).flatten();
        if let Some(waiting) = waiting {
            #[expect(clippy::let_underscore_must_use, reason = "nobody waits any longer")]
            let _ = waiting.try_send(answer);
        }
    }
}

impl Drop for LineEnd {
    fn drop(&mut self) {
        *self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Line {
    /// Asks, and waits for the answer; not to be called where others wait.
    pub(crate) fn ask(&self, ask: SavedAsk) -> io::Result<SavedAnswer> {
        let (answer, answered) = mpsc::sync_channel(1);
        let request = self.with(|waiting| {
            waiting.next += 1;
            waiting.answers.insert(waiting.next, answer);
            waiting.next
        });
        (self.send)(request.ok_or_else(cut)?, ask);
        match answered.recv_timeout(ANSWER_MAX) {
            Ok(SavedAnswer::Failed(reason)) => Err(io::Error::other(reason)),
            Ok(answer) => Ok(answer),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(cut()),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(ErrorKind::TimedOut.into()),
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Waiting) -> T) -> Option<T> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(act)
    }
}

fn cut() -> io::Error {
    io::Error::new(ErrorKind::NotConnected, "the connection was cut")
}
