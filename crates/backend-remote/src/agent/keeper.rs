use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use pollux_backend::ReplicaOrder;
use pollux_policy::JobId;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::members::write;
use crate::protocol::{SavedAnswer, SavedAsk};
use crate::saved::fetch::{Ask, Fetched, answer, fetch};
use crate::saved::files::{SavedFolders, since_1970};

/// Ends the name of a file that says what the scheduler has a copy of.
const HANDED: &str = "handed";
/// Where programs look for the folder in which they save.
const VARIABLE: &str = "POLLUX_CHECKPOINT_DIR";

/// What jobs save on a machine that does not see the scheduler's folder. Copies are cheap.
#[derive(Clone, Debug)]
pub(super) struct Keeper {
    folders: SavedFolders,
    /// One job's folder is replaced at a time.
    replacing: Arc<Mutex<()>>,
}

/// Up to when the scheduler has the same: by this machine's clock, and by its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Handed {
    here_ns: u64,
    there_ns: u64,
}

impl Keeper {
    /// Below a folder; jobs of other schedulers have the same numbers.
    pub(super) fn new(folder: &Path, cluster: &str) -> Self {
        let root = folder.join(format!("cluster-{}", cluster.get(..16).unwrap_or(cluster)));
        Self { folders: SavedFolders::new(root), replacing: Arc::default() }
    }

    pub(super) fn folder(&self) -> &Path {
        self.folders.root()
    }

    /// An order whose program saves here.
    pub(super) fn kept_here(&self, order: ReplicaOrder) -> ReplicaOrder {
        let folder = self.folders.of(order.job).to_string_lossy().into_owned();
        let mut environment = order.environment;
        environment.insert(VARIABLE.to_owned(), folder.clone());
        ReplicaOrder { checkpoint_dir: folder, environment, ..order }
    }

    /// Makes sure that a job finds here the newest that it has saved anywhere.
    pub(super) fn bring(&self, ask: Ask<'_>, job: JobId) -> io::Result<()> {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let (handed, ours) = (self.handed(job)?, self.folders.list(job)?);
        let is_wanted = |offer: &crate::saved::fetch::Offer| {
            let is_handed = handed.here_ns == ours.written_ns;
            Ok(match is_handed {
                true => ours.files.is_empty() || handed.there_ns != offer.there_ns,
                false => ours.files.is_empty() || since_1970(offer.here) > ours.written_ns,
            })
        };
        match fetch(ask, &self.folders, job, is_wanted)? {
            Fetched::Copied { there_ns, here_ns } => self.note(job, Handed { here_ns, there_ns }),
            Fetched::Nothing | Fetched::Unwanted { .. } => Ok(()),
        }
    }

    /// Jobs that have saved what the scheduler has no copy of, and how many milliseconds ago; what was written within `settles`
    /// may still be written to.
    pub(super) fn unhanded(&self, settles: Duration) -> io::Result<Vec<(JobId, u64)>> {
        let mut unhanded = Vec::new();
        for job in self.folders.jobs()? {
            // Files of one job that cannot be handed over keep nobody else's here.
            let listing = match self.folders.list(job) {
                Ok(listing) => listing,
                Err(error) => {
                    warn!(job = job.0, %error, "what it saved here cannot be handed over");
                    continue;
                }
            };
            let age = Duration::from_nanos(since_1970(SystemTime::now()).saturating_sub(listing.written_ns));
            if !listing.files.is_empty() && age >= settles && self.handed(job)?.here_ns != listing.written_ns {
                unhanded.push((job, u64::try_from(age.as_millis()).unwrap_or(u64::MAX)));
            }
        }
        Ok(unhanded)
    }

    /// Answers the scheduler; it waits for the disk.
    pub(super) fn answer(&self, ask: &SavedAsk) -> SavedAnswer {
        if let SavedAsk::Taken { job, there_ns, here_ns } = *ask {
            let handed = Handed { here_ns: there_ns, there_ns: here_ns };
            if let Err(error) = self.note(job, handed) {
                return SavedAnswer::Failed(error.to_string());
            }
        }
        answer(&self.folders, ask)
    }

    /// Deletes what a job has saved.
    pub(super) fn discard(&self, job: JobId) -> io::Result<()> {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        self.folders.delete(job)?;
        match fs::remove_file(self.folders.beside(job, HANDED)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn handed(&self, job: JobId) -> io::Result<Handed> {
        match fs::read(self.folders.beside(job, HANDED)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Handed::default()),
            // One that cannot be read says that nothing was handed over, so that it is again.
            read => Ok(serde_json::from_slice(&read?).unwrap_or_default()),
        }
    }

    fn note(&self, job: JobId, handed: Handed) -> io::Result<()> {
        write(&self.folders.beside(job, HANDED), &handed)
    }
}
