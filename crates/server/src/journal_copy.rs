//! A second copy of the journal, for a scheduler whose own disk may be lost.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;

/// Lines that nobody waits for are copied together, so long after the first.
const LINGER: Duration = Duration::from_secs(1);
/// Appended lots after which the whole is worth its copying.
const LOTS_MAX: u32 = 256;

/// Why something was not copied.
#[derive(Debug, Error)]
pub enum CopyError {
    /// Asking again later may work; what was written is as it was.
    #[error("{0}")]
    Unavailable(String),
    /// Another scheduler writes there.
    #[error("another scheduler writes the journal")]
    Superseded,
}

/// Keeps what a scheduler writes, elsewhere. Calls wait until it is durable.
pub trait JournalCopy: fmt::Debug + Send + Sync {
    /// Adds lines, in order, or none of them.
    fn append(&self, lines: &[String]) -> Result<(), CopyError>;

    /// Keeps a database in the place of all lines so far, which it holds.
    fn replace(&self, database: &Path) -> Result<(), CopyError>;
}

/// What is still to be copied.
#[derive(Debug)]
pub(crate) struct Copying {
    pub(crate) copy: Arc<dyn JournalCopy>,
    lines: Vec<String>,
    since: Option<Instant>,
    lots: u32,
    /// Whether somebody waits for it.
    is_urgent: bool,
    is_failing: bool,
}

impl Copying {
    /// Nothing is copied yet: the first that is copied is the whole.
    pub(crate) fn new(copy: Arc<dyn JournalCopy>) -> Self {
        Self { copy, lines: Vec::new(), since: None, lots: LOTS_MAX, is_urgent: true, is_failing: false }
    }

    pub(crate) fn push(&mut self, line: String) {
        self.lines.push(line);
        self.since.get_or_insert_with(Instant::now);
    }

    pub(crate) fn hurry(&mut self) {
        self.is_urgent = true;
    }

    /// Whether the last attempt failed, so that nothing new is to be decided.
    pub(crate) const fn is_failing(&self) -> bool {
        self.is_failing
    }

    pub(crate) fn is_due(&self) -> bool {
        self.is_urgent || self.is_failing || self.since.is_some_and(|since| since.elapsed() >= LINGER)
    }

    /// When it is due at the latest.
    pub(crate) fn wait(&self) -> Option<Duration> {
        (self.is_failing || self.since.is_some()).then_some(LINGER)
    }

    /// Whether the whole is to be copied.
    pub(crate) const fn wants_whole(&self) -> bool {
        self.lots >= LOTS_MAX
    }

    /// Adds what is new.
    pub(crate) fn append(&mut self) -> Result<(), CopyError> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let appended = self.copy.append(&self.lines);
        self.conclude(appended)?;
        self.lots += 1;
        Ok(())
    }

    /// Keeps a database that holds everything.
    pub(crate) fn replace(&mut self, database: &Path) -> Result<(), CopyError> {
        let replaced = self.copy.replace(database);
        self.conclude(replaced)?;
        self.lots = 0;
        Ok(())
    }

    fn conclude(&mut self, outcome: Result<(), CopyError>) -> Result<(), CopyError> {
        self.is_failing = outcome.is_err();
        outcome?;
        self.lines.clear();
        (self.since, self.is_urgent) = (None, false);
        Ok(())
    }
}
