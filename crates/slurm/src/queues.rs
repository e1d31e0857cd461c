//! The queues, for whoever changes and shows them.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use pollux_api::AllocationQueueSpec;
use thiserror::Error;

use crate::journal::{self, Journal};
use crate::process::CommandError;
use crate::queue::{self, Allocation, Happening, Queue, SpecError, Stage};
use crate::script::{self, Join};
use crate::slurm::{self, Order, Rehearsal};

const QUEUES_MAX: usize = 100;
/// What is shown of what an allocation has printed: its end.
const SHOWN_MAX: u64 = 64 << 10;
const TOKEN_FILE: &str = "join-token";
/// Where files are, unless a queue says otherwise: in the state folder.
const FOLDER: &str = "slurm";

/// All queues of a scheduler. Copies are cheap.
#[derive(Clone, Debug, Default)]
pub struct Queues {
    shared: Arc<Mutex<Option<Opened>>>,
}

#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) journal: Journal,
    pub(crate) state_dir: PathBuf,
    /// What runs on nodes.
    program: PathBuf,
    /// Nothing is listed before.
    pub(crate) look_at_ms: u64,
    /// Failures of `squeue` in a row, and the last one.
    pub(crate) looks_failed: u32,
    pub(crate) trouble: Option<String>,
}

/// Why something cannot be done with queues.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum QueuesError {
    /// A queue that cannot be.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is no such queue.
    #[error("no queue {name:?}: `pollux alloc list` shows those that there are")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// There is one already.
    #[error("there is a queue {name} already: give another name, or `pollux alloc remove {name}` first")]
    Known {
        /// Its name.
        name: String,
    },
    /// A queue that is on its way out.
    #[error("queue {name} is removed, and goes with its last allocation")]
    Removed {
        /// Its name.
        name: String,
    },
    /// More than anybody needs.
    #[error("{QUEUES_MAX} queues already: expected no more")]
    TooMany,
    /// The queue has no such allocation.
    #[error("queue {name} has had no Slurm job {job} lately: `pollux alloc describe {name}` shows those that it has")]
    UnknownJob {
        /// The queue.
        name: String,
        /// What was asked for.
        job: u64,
    },
    /// Slurm would not take its allocations.
    #[error("sbatch would refuse allocations of this queue: {said}")]
    Refused {
        /// What it said.
        said: String,
    },
    /// The commands of Slurm do not answer.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// What is known of them cannot be read or written.
    #[error("queues of allocations: {0}")]
    State(#[from] io::Error),
    /// The scheduler is not ready, or ends.
    #[error("the scheduler is not ready: try again")]
    Closed,
}

/// What agents need to find their scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where it is.
    pub url: String,
    /// A token that lets machines join.
    pub token: String,
}

/// A machine that has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Whether it is connected.
    pub is_connected: bool,
    /// Its nodes.
    pub nodes: Vec<MachineNode>,
}

/// A node of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineNode {
    /// Its name.
    pub name: String,
    /// Its GPUs.
    pub gpus: u32,
    /// What they are called.
    pub gpu_type: String,
    /// Those that jobs have.
    pub held: u32,
    /// Whether it is being emptied.
    pub is_draining: bool,
}

/// What somebody wants of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing more is to be asked for.
    Pause,
    /// It is to go on, also after failures.
    Resume,
    /// All of it is to be given back.
    Remove,
}

impl Queues {
    /// Reads what an earlier scheduler with this state folder has left. `program` runs on the nodes.
    pub fn open(&self, state_dir: &Path, program: &Path) -> io::Result<()> {
        let journal = Journal::open(state_dir)?;
        let (state_dir, program) = (state_dir.to_owned(), program.to_owned());
        *self.lock() = Some(Opened { journal, state_dir, program, look_at_ms: 0, looks_failed: 0, trouble: None });
        Ok(())
    }

    /// All of them, in the order in which they were added.
    pub fn list(&self) -> Vec<Queue> {
        self.lock().as_ref().map(|opened| opened.journal.queues().to_vec()).unwrap_or_default()
    }

    /// One of them.
    pub fn find(&self, name: &str) -> Result<Queue, QueuesError> {
        self.with(|opened| opened.journal.queue(name).cloned().ok_or_else(|| unknown(name)))
    }

    /// Whether Slurm is to be looked at.
    pub fn is_due(&self, now_ms: u64) -> bool {
        self.lock().as_ref().is_some_and(|opened| !opened.journal.queues().is_empty() && now_ms >= opened.look_at_ms)
    }

    /// What `sbatch` would say to an allocation of a queue; nothing is asked for.
    pub fn rehearse(&self, spec: AllocationQueueSpec) -> Result<Rehearsal, QueuesError> {
        let spec = self.completed(spec)?;
        let allocation = rehearsed(&spec);
        let files = self.with(|opened| Ok(Files::of(opened, &spec, &allocation.name)))?;
        let batch = script::batch(&files.script);
        Ok(slurm::rehearse(&Order { name: &allocation.name, spec: &spec, output: &files.output, batch: &batch })?)
    }

    /// Adds a queue that Slurm would take allocations of.
    pub fn add(&self, spec: AllocationQueueSpec, place: &Place, now_ms: u64) -> Result<Queue, QueuesError> {
        let spec = self.completed(spec)?;
        let name = spec.name.clone();
        let is_free = |opened: &mut Opened| match opened.journal.queue(&name) {
            Some(_) => Err(QueuesError::Known { name: name.clone() }),
            None if opened.journal.queues().len() >= QUEUES_MAX => Err(QueuesError::TooMany),
            None => Ok(()),
        };
        self.with(is_free)?;
        let rehearsal = self.rehearse(spec.clone())?;
        if !rehearsal.is_accepted {
            return Err(QueuesError::Refused { said: rehearsal.said });
        }
        let files = self.with(|opened| Ok(Files::of(opened, &spec, &rehearsed(&spec).name)))?;
        files.prepare(place)?;
        self.with(|opened| {
            is_free(opened)?;
            let mut queue = Queue::new(spec);
            queue.note(now_ms, format!("Queue {name} was added; sbatch says: {}", rehearsal.said));
            opened.journal.change(|queues| queues.push(queue.clone()))?;
            Ok(queue)
        })
    }

    /// Pauses, resumes or removes a queue.
    pub fn act(&self, name: &str, wish: Wish, now_ms: u64) -> Result<(), QueuesError> {
        self.with(|opened| {
            let queue = opened.journal.queue(name).ok_or_else(|| unknown(name))?;
            if queue.is_removed && wish != Wish::Remove {
                return Err(QueuesError::Removed { name: name.to_owned() });
            }
            opened.journal.change(|queues| {
                queues.iter_mut().filter(|queue| queue.spec.name == name).for_each(|queue| wished(queue, wish, now_ms));
                queues.retain(|queue| !(queue.is_removed && queue.allocations.is_empty()));
            })?;
            Ok(())
        })
    }

    /// The end of what an allocation has printed: the one with a number, or the newest.
    pub fn printed(&self, name: &str, job: Option<u64>) -> Result<Option<(u64, String)>, QueuesError> {
        let found = self.with(|opened| {
            let queue = opened.journal.queue(name).ok_or_else(|| unknown(name))?;
            let live = queue.allocations.iter().filter_map(|it| Some((it.job?, &it.name)));
            let known = queue.ended.iter().map(|it| (it.job, &it.name)).chain(live);
            let mut known = known.filter(|(number, _)| job.is_none_or(|job| job == *number));
            let found = known.next_back().map(|(number, name)| (number, Files::of(opened, &queue.spec, name).output));
            match (found, job) {
                (None, Some(job)) => Err(QueuesError::UnknownJob { name: name.to_owned(), job }),
                (found, _) => Ok(found),
            }
        })?;
        let Some((number, file)) = found else { return Ok(None) };
        let text = match File::open(&file) {
            Ok(mut file) => {
                let length = file.metadata()?.len();
                file.seek(SeekFrom::Start(length.saturating_sub(SHOWN_MAX)))?;
                let mut bytes = Vec::new();
                file.take(SHOWN_MAX).read_to_end(&mut bytes)?;
                String::from_utf8_lossy(&bytes).into_owned()
            }
            // It has printed nothing yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(Some((number, text)))
    }

    /// A queue with the folder that it uses.
    fn completed(&self, spec: AllocationQueueSpec) -> Result<AllocationQueueSpec, QueuesError> {
        let usual = self.with(|opened| Ok(std::path::absolute(&opened.state_dir)?.join(FOLDER)))?;
        let folder = spec.folder.unwrap_or_else(|| usual.to_string_lossy().into_owned());
        let spec = AllocationQueueSpec { folder: Some(folder), ..spec };
        queue::check(&spec)?;
        Ok(spec)
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Opened) -> Result<T, QueuesError>) -> Result<T, QueuesError> {
        self.lock().as_mut().map_or(Err(QueuesError::Closed), act)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Opened>> {
        self.shared.lock().expect("nobody panics with it")
    }
}

fn wished(queue: &mut Queue, wish: Wish, now_ms: u64) {
    match wish {
        Wish::Pause => {
            queue.is_paused = true;
            queue.note(now_ms, "It was paused.".to_owned());
        }
        Wish::Resume => {
            (queue.is_paused, queue.stopped) = (false, None);
            (queue.refusals, queue.misses, queue.not_before_ms) = (0, 0, 0);
            queue.note(now_ms, "It was resumed.".to_owned());
        }
        Wish::Remove => {
            queue.is_removed = true;
            let why = Happening { at_ms: now_ms, text: "its queue was removed".to_owned() };
            queue.allocations.iter_mut().for_each(|it| {
                it.given_up.get_or_insert_with(|| why.clone());
            });
            queue.note(now_ms, "It was removed.".to_owned());
        }
    }
}

fn unknown(name: &str) -> QueuesError {
    QueuesError::Unknown { name: name.to_owned() }
}

/// An allocation that is only spoken of.
fn rehearsed(spec: &AllocationQueueSpec) -> Allocation {
    new_allocation(0, format!("pollux-dry-run-{}", spec.name), 0)
}

pub(crate) fn new_allocation(number: u64, name: String, now_ms: u64) -> Allocation {
    Allocation {
        number,
        name,
        stage: Stage::Asked,
        asked_ms: now_ms,
        job: None,
        state: String::new(),
        reason: String::new(),
        start_ms: None,
        end_ms: None,
        hosts: String::new(),
        has_joined: false,
        is_settled: false,
        given_up: None,
    }
}

/// Where the files of an allocation are.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    token: PathBuf,
    program: PathBuf,
    pub(crate) script: PathBuf,
    pub(crate) output: PathBuf,
}

impl Files {
    pub(crate) fn of(opened: &Opened, spec: &AllocationQueueSpec, allocation: &str) -> Self {
        let usual = || opened.state_dir.join(FOLDER);
        let folder = spec.folder.as_ref().map_or_else(usual, PathBuf::from);
        Self {
            token: folder.join(TOKEN_FILE),
            program: opened.program.clone(),
            script: folder.join(format!("{allocation}.sh")),
            output: folder.join(format!("{allocation}.out")),
            folder,
        }
    }

    /// Lets agents join that start from now on.
    pub(crate) fn prepare(&self, place: &Place) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(|error| self.named(&error))?;
        if fs::read_to_string(&self.token).is_ok_and(|text| text == place.token) {
            return Ok(());
        }
        journal::write(&self.token, place.token.as_bytes()).map_err(|error| self.named(&error))
    }

    /// Writes what an allocation runs.
    pub(crate) fn write_script(
        &self,
        spec: &AllocationQueueSpec,
        allocation: &Allocation,
        url: &str,
    ) -> io::Result<()> {
        let join = Join { url, program: &self.program, token_file: &self.token };
        let text = script::script(spec, allocation, &join);
        journal::write(&self.script, text.as_bytes()).map_err(|error| self.named(&error))
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.folder.display()))
    }
}
