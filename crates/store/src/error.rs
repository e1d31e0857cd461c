use std::io;
use std::path::PathBuf;

use rusqlite::{ErrorCode, ffi};
use thiserror::Error;

/// Why a state folder cannot be used, or not now.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The folder cannot be made or written.
    #[error("state folder {}: {reason}", .folder.display())]
    Folder {
        /// Which.
        folder: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// Another process has it.
    #[error("state folder {} is in use by another scheduler: stop that one, or give another folder", .folder.display())]
    Busy {
        /// Which.
        folder: PathBuf,
    },
    /// A file of that name is not ours.
    #[error("{} is no journal of this program: give another state folder", .file.display())]
    Foreign {
        /// Which.
        file: PathBuf,
    },
    /// Written by a later version of the program.
    #[error(
        "{} has schema version {found}: expected versions up to {supported}; it was left as it is", .file.display()
    )]
    NewerVersion {
        /// Which.
        file: PathBuf,
        /// Its version.
        found: i64,
        /// The newest that can be read.
        supported: i64,
    },
    /// A row that only a later version of the program can read.
    #[error("{what} is written in format {found}: expected format {supported} or an earlier one; nothing was changed")]
    NewerRecord {
        /// Which row.
        what: String,
        /// Its format.
        found: i64,
        /// The newest that can be read.
        supported: i64,
    },
    /// A row makes no sense.
    #[error("{what} in the state folder is damaged: {reason}")]
    Unreadable {
        /// Which row.
        what: String,
        /// What is wrong with it.
        reason: serde_json::Error,
    },
    /// A record in the middle of the journal makes no sense, so that what follows cannot be trusted.
    #[error("record {sequence} of the journal is damaged: {reason}")]
    Damaged {
        /// Which.
        sequence: u64,
        /// What is wrong with it.
        reason: serde_json::Error,
    },
    /// There is no room left; what was to be written is not.
    #[error("the disk of the state folder is full: free some space")]
    Full,
    /// Anything else that the database says.
    #[error("journal: {0}")]
    Database(rusqlite::Error),
}

impl StoreError {
    /// Whether what is written makes no sense: not that it cannot be read now, or only by a later version.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Unreadable { .. } | Self::Damaged { .. } | Self::Foreign { .. } => true,
            Self::Database(error) => {
                matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
            }
            Self::Folder { .. }
            | Self::Busy { .. }
            | Self::NewerVersion { .. }
            | Self::NewerRecord { .. }
            | Self::Full => false,
        }
    }

    /// Whether the same call may succeed later, with nothing lost meanwhile.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Full)
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        // A quota that is used up, and a disk without room for the index of the log, are told as failed writes. Those
        // come before a commit; what becomes of one that could not be flushed nobody knows.
        let is_full = error.sqlite_error().is_some_and(|error| {
            error.code == ErrorCode::DiskFull
                || [ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMSIZE].contains(&error.extended_code)
        });
        if is_full { Self::Full } else { Self::Database(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_found_no_room_may_be_tried_again_and_failed_flushes_may_not() {
        let is_retryable =
            |code| StoreError::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)).is_retryable();
        assert!([ffi::SQLITE_FULL, ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMSIZE].into_iter().all(is_retryable));
        assert!(![ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_CORRUPT].into_iter().any(is_retryable));
    }
    #[test]
    fn a_full_disk_or_a_later_version_is_no_damage() {
        let is_damage =
            |code| StoreError::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)).is_damage();
        assert!([ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB].into_iter().all(is_damage));
        assert!(![ffi::SQLITE_FULL, ffi::SQLITE_IOERR_READ, ffi::SQLITE_BUSY].into_iter().any(is_damage));
        let file = PathBuf::from("f");
        assert!(StoreError::Foreign { file: file.clone() }.is_damage());
        assert!(!StoreError::NewerVersion { file, found: 9, supported: 3 }.is_damage());
        let what = "a batch".to_owned();
        assert!(!StoreError::NewerRecord { what, found: 9, supported: 3 }.is_damage());
    }
}
