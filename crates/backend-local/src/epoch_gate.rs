//! Who may give orders: of two schedulers only the newer one, also if both have the folder open.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pollux_backend::Epoch;
use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use thiserror::Error;
use tracing::error;

/// The file in the state folder that holds the highest epoch seen.
const EPOCH: &str = "epoch";

/// Lets orders through whose epoch is not old. Copies are cheap.
#[derive(Clone, Debug)]
pub(crate) struct EpochGate {
    folder: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// Locked while an order is carried out, against others who have the folder open.
    lock: File,
    /// The highest that the file was seen to hold.
    highest: Epoch,
}

/// Why an order is not carried out.
#[derive(Debug, Error)]
pub(crate) enum Refusal {
    /// A scheduler of this higher epoch has given orders.
    #[error("superseded by {0}")]
    Superseded(Epoch),
    /// Nobody knows whether one has, or nobody would know that this one does.
    #[error("whether another scheduler has taken over cannot be checked: {0}")]
    Unchecked(#[from] io::Error),
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Superseded(_) => Self::new(ErrorKind::PermissionDenied, refusal),
            Refusal::Unchecked(error) => error,
        }
    }
}

/// While it is held, no other scheduler is let through.
#[derive(Debug)]
pub(crate) struct Admission<'a>(MutexGuard<'a, State>);

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if let Err(error) = flock(&self.0.lock, FlockOperation::Unlock) {
            error!(%error, "the state folder stays locked against other schedulers");
        }
    }
}

impl EpochGate {
    /// Fails where epochs cannot be read, or the folder cannot be locked, as on some network file systems.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let state = State { lock: File::open(folder)?, highest: Epoch::default() };
        let gate = Self { folder: folder.to_owned(), state: Arc::new(Mutex::new(state)) };
        gate.lock()?.0.highest = read(folder)?.unwrap_or_default();
        Ok(gate)
    }

    /// Lets a scheduler act, unless one of a higher epoch has. Its epoch is on the disk before it does.
    pub(crate) fn admit(&self, epoch: Epoch) -> Result<Admission<'_>, Refusal> {
        let mut admission = self.lock()?;
        let highest = &mut admission.0.highest;
        let kept = match read(&self.folder)? {
            Some(kept) => kept,
            None if *highest == Epoch::default() => Epoch::default(),
            None => {
                let path = self.folder.join(EPOCH);
                let lost = format!("{} is gone: it held {}", path.display(), highest.0);
                return Err(io::Error::new(ErrorKind::NotFound, lost).into());
            }
        };
        *highest = kept.max(*highest);
        if epoch < *highest {
            return Err(Refusal::Superseded(*highest));
        }
        if epoch > kept {
            write(&self.folder, epoch)?;
            *highest = epoch;
        }
        Ok(admission)
    }

    fn lock(&self) -> io::Result<Admission<'_>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        retry_on_intr(|| flock(&state.lock, FlockOperation::LockExclusive))?;
        Ok(Admission(state))
    }
}

/// A scheduler of any epoch may act next.
pub(crate) fn forget(folder: &Path) -> io::Result<()> {
    match fs::remove_file(folder.join(EPOCH)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The highest epoch that was written; `None` where there is no file.
fn read(folder: &Path) -> io::Result<Option<Epoch>> {
    match fs::read_to_string(folder.join(EPOCH)) {
        Ok(text) => text.trim().parse().map(|epoch| Some(Epoch(epoch))).map_err(|_| {
            let path = folder.join(EPOCH);
            io::Error::new(ErrorKind::InvalidData, format!("{} holds {text:?}: expected a number", path.display()))
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file is there whole or not at all, also after a power failure.
fn write(folder: &Path, epoch: Epoch) -> io::Result<()> {
    let new = folder.join(format!("{EPOCH}.new"));
    let mut file = File::create(&new)?;
    writeln!(file, "{}", epoch.0)?;
    file.sync_all()?;
    fs::rename(new, folder.join(EPOCH))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folder::TestFolder;

    fn refusal(gate: &EpochGate, epoch: u64) -> Option<String> {
        gate.admit(Epoch(epoch)).err().map(|refusal| refusal.to_string())
    }

    #[test]
    fn of_two_who_have_the_folder_open_the_newer_acts() {
        let folder = TestFolder::new("epoch-gate");
        let [first, second] = [(); 2].map(|()| EpochGate::open(folder.path()).unwrap());
        assert_eq!(refusal(&first, 1), None);
        assert_eq!(refusal(&second, 2), None);
        assert_eq!(refusal(&first, 1).as_deref(), Some("superseded by epoch 2"));
        assert_eq!(refusal(&first, 2), None, "the same scheduler");
        let third = EpochGate::open(folder.path()).unwrap();
        assert_eq!(refusal(&third, 1).as_deref(), Some("superseded by epoch 2"));
        assert_eq!(fs::read_to_string(folder.path().join(EPOCH)).unwrap(), "2\n");
    }

    #[test]
    fn nobody_acts_whose_epoch_cannot_be_written() {
        let folder = TestFolder::new("epoch-unwritten");
        let [first, second] = [(); 2].map(|()| EpochGate::open(folder.path()).unwrap());
        assert_eq!(refusal(&first, 1), None);
        // As a full disk would, for root too.
        let in_the_way = folder.path().join("epoch.new");
        fs::create_dir(&in_the_way).unwrap();
        let unchecked = "whether another scheduler has taken over cannot be checked: ";
        assert!(refusal(&second, 2).unwrap().starts_with(unchecked));
        assert_eq!(refusal(&first, 1), None, "nobody else has acted");
        fs::remove_dir(in_the_way).unwrap();
        assert_eq!(refusal(&second, 2), None);
        assert_eq!(refusal(&first, 1).as_deref(), Some("superseded by epoch 2"));
    }

    #[test]
    fn nobody_acts_while_the_epoch_cannot_be_read() {
        let folder = TestFolder::new("epoch-unread");
        let gate = EpochGate::open(folder.path()).unwrap();
        assert_eq!(refusal(&gate, 3), None);
        let (file, aside) = (folder.path().join(EPOCH), folder.path().join("aside"));
        fs::rename(&file, &aside).unwrap();
        assert!(refusal(&gate, 3).unwrap().ends_with("epoch is gone: it held 3"));
        fs::create_dir(&file).unwrap();
        assert!(refusal(&gate, 3).is_some());
        fs::remove_dir(&file).unwrap();
        fs::write(&file, "many").unwrap();
        assert!(refusal(&gate, 3).unwrap().ends_with("epoch holds \"many\": expected a number"));
        fs::rename(aside, file).unwrap();
        assert_eq!(refusal(&gate, 3), None);
    }

    #[test]
    fn a_file_that_makes_no_sense_is_no_epoch() {
        let folder = TestFolder::new("epoch-garbage");
        fs::write(folder.path().join(EPOCH), "many").unwrap();
        let error = EpochGate::open(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("epoch holds \"many\": expected a number"), "{error}");
    }
}
