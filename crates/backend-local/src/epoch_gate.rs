//! Who may give orders: of two schedulers only the newer one, also if both have the folder open.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pollux_backend::Epoch;
use rustix::fs::{FlockOperation, flock};

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
    highest: Epoch,
}

impl EpochGate {
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let highest = read(folder)?;
        let state = State { lock: File::open(folder)?, highest };
        Ok(Self { folder: folder.to_owned(), state: Arc::new(Mutex::new(state)) })
    }

    /// Acts for a scheduler, unless one of a higher epoch has.
    pub(crate) fn pass<T>(&self, epoch: Epoch, act: impl FnOnce() -> T) -> Result<T, Epoch> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Where a system knows no locks, what is in the file still counts.
        let _ = flock(&state.lock, FlockOperation::LockExclusive);
        // A file that cannot be read at the moment held what was seen last.
        let kept = read(&self.folder).unwrap_or(state.highest);
        state.highest = state.highest.max(kept).max(epoch);
        let outcome = if epoch < state.highest { Err(state.highest) } else { Ok(()) };
        if kept < state.highest {
            // Without room for it now, the next order writes it.
            let _ = write(&self.folder, state.highest);
        }
        let outcome = outcome.map(|()| act());
        let _ = flock(&state.lock, FlockOperation::Unlock);
        outcome
    }
}

/// Nobody has given orders where there is no file.
fn read(folder: &Path) -> io::Result<Epoch> {
    match fs::read_to_string(folder.join(EPOCH)) {
        Ok(text) => text.trim().parse().map(Epoch).map_err(|_| {
            let path = folder.join(EPOCH);
            io::Error::new(ErrorKind::InvalidData, format!("{} holds {text:?}: expected is a number", path.display()))
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Epoch::default()),
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

    #[test]
    fn of_two_who_have_the_folder_open_the_newer_acts() {
        let folder = TestFolder::new("epoch-gate");
        let [first, second] = [(); 2].map(|()| EpochGate::open(folder.path()).unwrap());
        assert_eq!(first.pass(Epoch(1), || "done"), Ok("done"));
        assert_eq!(second.pass(Epoch(2), || "done"), Ok("done"));
        assert_eq!(first.pass(Epoch(1), || unreachable!("it is superseded")), Err::<(), _>(Epoch(2)));
        assert_eq!(first.pass(Epoch(2), || "the same scheduler"), Ok("the same scheduler"));
        let third = EpochGate::open(folder.path()).unwrap();
        assert_eq!(third.pass(Epoch(1), || ()), Err(Epoch(2)));
        assert_eq!(fs::read_to_string(folder.path().join(EPOCH)).unwrap(), "2\n");
    }

    #[test]
    fn a_file_that_makes_no_sense_is_no_epoch() {
        let folder = TestFolder::new("epoch-garbage");
        fs::write(folder.path().join(EPOCH), "many").unwrap();
        let error = EpochGate::open(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("epoch holds \"many\": expected is a number"), "{error}");
    }
}
