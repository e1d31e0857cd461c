//! Copies what a job has saved from the other side of a connection, and answers such questions of the other side.

use std::io::{self, ErrorKind, Write};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pollux_policy::JobId;
use tracing::info;

use crate::protocol::{SavedAnswer, SavedAsk, SavedFile};
use crate::saved::files::{FILES_MAX, Gathered, Listing, SavedFolders, since_1970};

/// What is asked for, and answered, at once.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// A program may save while it is copied; then it is begun again so often.
const ATTEMPTS_MAX: u32 = 5;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(300);

/// How questions get to the other side.
pub(crate) type Ask<'a> = &'a dyn Fn(SavedAsk) -> io::Result<SavedAnswer>;

/// What came of it, and when what there is was written by the clock of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// Nothing is saved there.
    Nothing,
    /// What is there is not wanted.
    Unwanted { there_ns: u64 },
    /// It was copied; by the clock of this side it was written then.
    Copied { there_ns: u64, here_ns: u64 },
}

/// What the other side has, in terms of this side's clock.
#[derive(Debug)]
pub(crate) struct Offer {
    files: Vec<SavedFile>,
    pub(crate) there_ns: u64,
    pub(crate) here: SystemTime,
}

impl Offer {
    /// Asks what there is; `None` if nothing is saved there.
    pub(crate) fn ask(ask: Ask<'_>, job: JobId) -> io::Result<Option<Self>> {
        let SavedAnswer::Files { files, written_ns, age_ms } = ask(SavedAsk::Files { job })? else {
            return Err(nonsense());
        };
        let here = SystemTime::now().checked_sub(Duration::from_millis(age_ms)).unwrap_or(SystemTime::UNIX_EPOCH);
        Ok((!files.is_empty()).then_some(Self { files, there_ns: written_ns, here }))
    }
}

/// Copies all that the other side has of a job, if `is_wanted`.
pub(crate) fn fetch(
    ask: Ask<'_>,
    folders: &SavedFolders,
    job: JobId,
    is_wanted: impl Fn(&Offer) -> io::Result<bool>,
) -> io::Result<Fetched> {
    for attempt in 1.. {
        let Some(offer) = Offer::ask(ask, job)? else { return Ok(Fetched::Nothing) };
        if !is_wanted(&offer)? {
            return Ok(Fetched::Unwanted { there_ns: offer.there_ns });
        }
        match copy(ask, folders, job, &offer, &is_wanted) {
            Ok(copied) => return Ok(copied),
            Err(error)
                if attempt == ATTEMPTS_MAX
                    || matches!(error.kind(), ErrorKind::NotConnected | ErrorKind::InvalidData) =>
            {
                return Err(error);
            }
            Err(error) => {
                info!(job = job.0, %error, "what it saved has changed while it was copied: it is begun again");
                std::thread::sleep(BETWEEN_ATTEMPTS);
            }
        }
    }
    unreachable!("the last attempt returns")
}

fn copy(
    ask: Ask<'_>,
    folders: &SavedFolders,
    job: JobId,
    offer: &Offer,
    is_wanted: &impl Fn(&Offer) -> io::Result<bool>,
) -> io::Result<Fetched> {
    let bytes = offer.files.iter().try_fold(0_u64, |sum, file| sum.checked_add(file.bytes));
    if offer.files.len() > FILES_MAX || bytes.is_none() {
        return Err(nonsense());
    }
    let gathered = Gathered::begin(folders, job, &offer.files)?;
    for file in &offer.files {
        if !gathered.has(file)? {
            copy_file(ask, &gathered, job, file)?;
        }
        let SavedAnswer::Digest { sha256 } = ask(SavedAsk::Digest { job, file: file.path.clone() })? else {
            return Err(nonsense());
        };
        if gathered.digest(file)? != sha256 {
            gathered.discard(file)?;
            return Err(changed(file));
        }
    }
    // What was written meanwhile belongs to another state of the job.
    match ask(SavedAsk::Files { job })? {
        SavedAnswer::Files { files, written_ns, .. } if files == offer.files && written_ns == offer.there_ns => {}
        SavedAnswer::Files { .. } => return Err(io::Error::other("other files are there now")),
        SavedAnswer::Piece { .. } | SavedAnswer::Digest { .. } | SavedAnswer::Noted | SavedAnswer::Failed(_) => {
            return Err(nonsense());
        }
    }
    // Copying takes time, in which newer files may have come here.
    if !is_wanted(offer)? {
        return Ok(Fetched::Unwanted { there_ns: offer.there_ns });
    }
    gathered.take_place(&offer.files, offer.here)?;
    Ok(Fetched::Copied { there_ns: offer.there_ns, here_ns: folders.list(job)?.written_ns })
}

fn copy_file(ask: Ask<'_>, gathered: &Gathered, job: JobId, file: &SavedFile) -> io::Result<()> {
    let mut written = gathered.create(file)?;
    let mut from = 0;
    while from < file.bytes {
        let bytes_max = PIECE_BYTES_MAX.min(file.bytes - from);
        let SavedAnswer::Piece { base64 } = ask(SavedAsk::Piece { job, file: file.path.clone(), from, bytes_max })?
        else {
            return Err(nonsense());
        };
        let bytes = STANDARD.decode(base64).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        if bytes.is_empty() || bytes.len() as u64 > bytes_max {
            return Err(changed(file));
        }
        written.write_all(&bytes)?;
        from += bytes.len() as u64;
    }
    written.flush()
}

/// Answers the other side. It waits for the disk.
pub(crate) fn answer(folders: &SavedFolders, ask: &SavedAsk) -> SavedAnswer {
    let answered = match ask {
        SavedAsk::Files { job } => folders.list(*job).map(|Listing { files, written_ns }| {
            let age = since_1970(SystemTime::now()).saturating_sub(written_ns);
            SavedAnswer::Files { files, written_ns, age_ms: age / 1_000_000 }
        }),
        SavedAsk::Piece { job, file, from, bytes_max } => folders
            .read(*job, file, *from, (*bytes_max).min(PIECE_BYTES_MAX))
            .map(|bytes| SavedAnswer::Piece { base64: STANDARD.encode(bytes) }),
        SavedAsk::Digest { job, file } => folders.digest(*job, file).map(|sha256| SavedAnswer::Digest { sha256 }),
        SavedAsk::Taken { .. } => Ok(SavedAnswer::Noted),
    };
    answered.unwrap_or_else(|error| {
        let folder = folders.of(ask.job());
        SavedAnswer::Failed(format!("{}: {error}", folder.display()))
    })
}

fn changed(file: &SavedFile) -> io::Error {
    io::Error::other(format!("{:?} has changed", file.path))
}

fn nonsense() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "an answer to another question")
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::fs;

    use super::*;

    const JOB: JobId = JobId(7);

    fn folders(folder: &tempfile::TempDir, name: &str) -> SavedFolders {
        SavedFolders::new(folder.path().join(name))
    }

    fn save(folders: &SavedFolders, file: &str, bytes: &[u8]) {
        let path = folders.of(JOB).join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn all(folders: &SavedFolders) -> Vec<(String, Vec<u8>)> {
        let files = folders.list(JOB).unwrap().files;
        files
            .into_iter()
            .map(|file| (fs::read(folders.of(JOB).join(&file.path)).unwrap(), file.path))
            .map(|(b, p)| (p, b))
            .collect()
    }

    #[test]
    fn all_files_replace_what_was_there_at_once_and_have_the_age_that_they_had() {
        let folder = tempfile::tempdir().unwrap();
        let (there, here) = (folders(&folder, "there"), folders(&folder, "here"));
        save(&there, "inside/deep/state", &vec![3; 2_500_000]);
        save(&there, "empty", b"");
        save(&here, "old", b"old");
        let fetched = fetch(&|ask| Ok(answer(&there, &ask)), &here, JOB, |_| Ok(true)).unwrap();
        assert_eq!(all(&here), all(&there));
        let Fetched::Copied { there_ns, here_ns } = fetched else { panic!("{fetched:?}") };
        assert_eq!((there_ns, here_ns), (there.list(JOB).unwrap().written_ns, here.list(JOB).unwrap().written_ns));
        assert!(there_ns.abs_diff(here_ns) < 10_000_000_000, "{there_ns} {here_ns}");
        assert!(!here.beside(JOB, "incoming").exists());
        let again = fetch(&|ask| Ok(answer(&there, &ask)), &here, JOB, |offer| Ok(offer.there_ns != there_ns));
        assert_eq!(again.unwrap(), Fetched::Unwanted { there_ns });
    }

    #[test]
    fn a_copy_that_is_cut_anywhere_shows_nothing_and_goes_on_with_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let (there, here) = (folders(&folder, "there"), folders(&folder, "here"));
        save(&there, "first", &vec![1; 1_500_000]);
        save(&there, "second", &vec![2; 1_500_000]);
        save(&here, "old", b"old");
        let mut pieces = Vec::new();
        // Two pieces and a digest of each file, and the listing before and after.
        for cut_after in 0..8 {
            let asked = RefCell::new(Vec::new());
            let ask = |ask: SavedAsk| {
                if asked.borrow().len() == cut_after {
                    return Err(ErrorKind::NotConnected.into());
                }
                asked.borrow_mut().push(ask.clone());
                Ok(answer(&there, &ask))
            };
            let outcome = fetch(&ask, &here, JOB, |_| Ok(true));
            let whole = all(&here) == all(&there);
            assert!(whole || all(&here) == [("old".to_owned(), b"old".to_vec())], "{cut_after}");
            assert_eq!(outcome.is_ok(), whole, "{cut_after}");
            pieces.push(asked.borrow().iter().filter(|ask| matches!(ask, SavedAsk::Piece { .. })).count());
            if whole {
                break;
            }
        }
        assert!(all(&here) == all(&there));
        assert_eq!(pieces.last(), Some(&0), "the last attempt asks for nothing that it has: {pieces:?}");
    }

    #[test]
    fn what_changes_while_it_is_copied_is_copied_again() {
        let folder = tempfile::tempdir().unwrap();
        let (there, here) = (folders(&folder, "there"), folders(&folder, "here"));
        save(&there, "state", b"before");
        let changes = Cell::new(1);
        let ask = |ask: SavedAsk| {
            if matches!(ask, SavedAsk::Digest { .. }) && changes.replace(0) == 1 {
                save(&there, "state", b"after!");
            }
            Ok(answer(&there, &ask))
        };
        fetch(&ask, &here, JOB, |_| Ok(true)).unwrap();
        assert_eq!(all(&here), [("state".to_owned(), b"after!".to_vec())]);
    }

    #[test]
    fn paths_that_leave_the_folder_are_refused_on_both_sides() {
        let folder = tempfile::tempdir().unwrap();
        let here = folders(&folder, "here");
        let lies = |ask: SavedAsk| {
            Ok(match ask {
                SavedAsk::Files { .. } => SavedAnswer::Files {
                    files: vec![SavedFile { path: "../../stolen".to_owned(), bytes: 1 }],
                    written_ns: 1,
                    age_ms: 0,
                },
                _ => SavedAnswer::Piece { base64: "YQ==".to_owned() },
            })
        };
        let error = fetch(&lies, &here, JOB, |_| Ok(true)).unwrap_err().to_string();
        assert_eq!(error, "\"../../stolen\": expected a path within the job's folder");
        let asked = SavedAsk::Piece { job: JOB, file: "../secret".to_owned(), from: 0, bytes_max: 9 };
        assert!(matches!(answer(&here, &asked), SavedAnswer::Failed(_)));
    }
}
