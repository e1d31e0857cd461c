//! What is durable here becomes durable elsewhere, before anything is done about it.

use std::fs;
use std::io;

use tracing::{debug, info, warn};

use super::{PendingActions, Scheduler};
use crate::journal_copy::CopyError;
use crate::{Copying, ServerError};

/// In the state folder: what is being copied.
const FILE: &str = "copy.db";

impl PendingActions {
    fn is_empty(&self) -> bool {
        let Self { starts, stops, regrouped, outdated, adopts } = self;
        starts.is_empty() && stops.is_empty() && regrouped.is_empty() && outdated.is_empty() && !adopts
    }
}

impl Scheduler {
    /// Notes what a commit has written.
    pub(super) fn note_for_copy(&mut self) -> Result<(), ServerError> {
        if let Some(copying) = &mut self.copying {
            copying.push(self.unwritten.to_text()?);
        }
        Ok(())
    }

    /// Somebody is to be told of what is written now.
    pub(super) fn hurry_copy(&mut self) {
        if let Some(copying) = &mut self.copying {
            copying.hurry();
        }
    }

    /// Whether nothing new may be decided, because what was cannot be copied.
    pub(super) fn is_copy_failing(&self) -> bool {
        self.copying.as_ref().is_some_and(Copying::is_failing)
    }

    /// Copies what somebody waits for, and now and then the rest; whether what is pending may be done.
    pub(super) fn copy(&mut self) -> Result<bool, ServerError> {
        if !self.pending.is_empty() {
            self.hurry_copy();
        }
        let was_failing = self.is_copy_failing();
        let Some(copying) = self.copying.as_mut().filter(|copying| copying.is_due()) else { return Ok(true) };
        let outcome = match copying.wants_whole() {
            false => copying.append(),
            true => self.copy_whole(),
        };
        match outcome {
            Ok(()) => {
                if was_failing {
                    info!("the journal is copied again");
                }
                Ok(true)
            }
            Err(CopyError::Superseded) => Err(ServerError::CopySuperseded),
            Err(error @ CopyError::Unavailable(_)) => {
                if !was_failing {
                    warn!(%error, "the journal cannot be copied, so that nothing new is done; it is tried again");
                }
                Ok(false)
            }
        }
    }

    fn copy_whole(&mut self) -> Result<(), CopyError> {
        let unavailable = |error: &dyn std::fmt::Display| CopyError::Unavailable(error.to_string());
        let file = self.settings.state_dir.join(FILE);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unavailable(&error)),
            Ok(()) | Err(_) => {}
        }
        let saved = self.store.save_snapshot(&self.engine.state()).and_then(|()| self.store.copy_to(&file));
        saved.map_err(|error| unavailable(&error))?;
        (self.snapshot, self.snapshot_tried) = (self.store.sequence(), self.store.sequence());
        let Some(copying) = &mut self.copying else { return Ok(()) };
        copying.replace(&file)?;
        debug!("the whole journal is copied");
        Ok(())
    }
}
