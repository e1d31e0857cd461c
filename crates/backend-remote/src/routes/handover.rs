//! What jobs have saved on machines that do not see the scheduler's folder: it is copied as soon as it is heard of, and a job
//! that starts waits until the newest is where it is looked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use pollux_backend::{Epoch, Observation, ReplicaId, ReplicaOrder};
use pollux_policy::JobId;
use serde::{Deserialize, Serialize};
use tracing::{debug, info, warn};

use super::{Place, Routes, start};
use crate::members::write;
use crate::nodes::now_ms;
use crate::protocol::{FromNode, SavedAnswer, SavedAsk, ToNode};
use crate::saved::fetch::{Fetched, answer, fetch};
use crate::saved::files::{SavedFolders, since_1970};

const FILE: &str = "saved.json";
const VERSION: u32 = 1;
/// A job that waits for what cannot be copied is told so after so many attempts.
const FAILURES_MAX: u32 = 3;
/// Before another attempt, doubled each time up to that.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Who has the newest of what.
#[derive(Debug)]
pub(super) struct Handover {
    file: PathBuf,
    folders: SavedFolders,
    kept: Kept,
    /// Orders that wait until the scheduler has the newest.
    waiting: BTreeMap<JobId, Vec<ReplicaOrder>>,
    /// What is being copied from a machine: one job at a time.
    copying: BTreeMap<String, JobId>,
    failures: BTreeMap<JobId, u32>,
    /// What is gone with its machine, until the job has been told.
    lost: BTreeMap<JobId, String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    version: u32,
    /// Machines where jobs save in a folder of their own, and which it is.
    #[serde(default)]
    keepers: BTreeMap<String, String>,
    /// Which of them jobs were ordered to.
    #[serde(default)]
    hosts: BTreeMap<JobId, BTreeSet<String>>,
    /// Which of them has something newer than the scheduler's folder.
    #[serde(default)]
    newest: BTreeMap<JobId, Newest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Newest {
    machine: String,
    at_ms: u64,
}

impl Handover {
    pub(super) fn open(state_dir: &Path, folder: &Path) -> io::Result<Self> {
        let file = state_dir.join(FILE);
        let named = |error: String| io::Error::new(ErrorKind::InvalidData, format!("{}: {error}", file.display()));
        let kept = match fs::read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Kept { version: VERSION, ..Kept::default() },
            read => serde_json::from_slice::<Kept>(&read?).map_err(|error| named(error.to_string()))?,
        };
        if kept.version > VERSION {
            return Err(named(format!("version {}: expected {VERSION}, or a later pollux", kept.version)));
        }
        Ok(Self {
            file,
            folders: SavedFolders::new(folder.to_owned()),
            kept,
            waiting: BTreeMap::new(),
            copying: BTreeMap::new(),
            failures: BTreeMap::new(),
            lost: BTreeMap::new(),
        })
    }

    pub(super) fn is_waiting(&self, replica: ReplicaId) -> bool {
        self.waiting.values().flatten().any(|order| order.replica == replica)
    }

    pub(super) fn withdraw(&mut self, replica: ReplicaId) {
        self.waiting.values_mut().for_each(|orders| orders.retain(|order| order.replica != replica));
        self.waiting.retain(|_, orders| !orders.is_empty());
    }

    fn is_host(&self, job: JobId, machine: &str) -> bool {
        self.kept.hosts.get(&job).is_some_and(|machines| machines.contains(machine))
    }

    fn change(&mut self, change: impl FnOnce(&mut Kept)) {
        change(&mut self.kept);
        if let Err(error) = write(&self.file, &self.kept) {
            warn!(file = %self.file.display(), %error, "who has the newest of what jobs saved cannot be written down");
        }
    }

    /// Where a job has saved on a machine.
    fn path(&self, job: JobId, machine: &str) -> String {
        let folder = self.kept.keepers.get(machine).map_or("", String::as_str);
        Path::new(folder).join(job.0.to_string()).display().to_string()
    }

    /// What is to be copied next from a machine: first of all what somebody waits for.
    fn next(&self, machine: &str) -> Option<(JobId, u64)> {
        let there = || self.kept.newest.iter().filter(|(_, newest)| newest.machine == machine);
        let awaited = there().find(|(job, _)| self.waiting.contains_key(job));
        awaited.or_else(|| there().next()).map(|(job, newest)| (*job, newest.at_ms))
    }
}

impl Routes {
    /// Whether an order has to wait for what its job saved last on another machine.
    pub(super) fn awaits_saved(&mut self, order: &ReplicaOrder, target: Option<&str>) -> bool {
        let (job, replica) = (order.job, order.replica);
        if let Some(target) = target.filter(|target| self.handover.kept.keepers.contains_key(*target))
            && !order.checkpoint_dir.is_empty()
            && !self.handover.is_host(job, target)
        {
            self.handover.change(|kept| {
                kept.hosts.entry(job).or_default().insert(target.to_owned());
            });
        }
        if !order.restores {
            return false;
        }
        if let Some(reason) = self.handover.lost.remove(&job) {
            self.observe(Observation::Pending { replica, reason });
        }
        let Some(newest) = self.handover.kept.newest.get(&job).filter(|it| Some(it.machine.as_str()) != target) else {
            return false;
        };
        let machine = newest.machine.clone();
        let does = if self.links.contains_key(&machine) { "is fetched" } else { "is waited for: it does not answer" };
        let reason = format!("{}: what it saved last is on {machine} and {does}", self.handover.path(job, &machine));
        self.handover.waiting.entry(job).or_default().push(order.clone());
        self.observe(Observation::Pending { replica, reason });
        self.copy_next(&machine);
        true
    }

    /// A machine keeps what jobs save in a folder of its own.
    pub(super) fn keeps(&mut self, machine: &str, folder: String) {
        info!(machine, folder, "machine does not share the checkpoints: what its jobs save is copied");
        if self.handover.kept.keepers.get(machine) != Some(&folder) {
            self.handover.change(|kept| drop(kept.keepers.insert(machine.to_owned(), folder)));
        }
        self.copy_next(machine);
    }

    /// A job has saved on a machine what the scheduler has no copy of.
    pub(super) fn saved(&mut self, machine: &str, job: JobId, age_ms: u64) {
        if !self.handover.is_host(job, machine) {
            return debug!(machine, job = job.0, "a machine has saved for a job that was not ordered there");
        }
        let at_ms = now_ms().saturating_sub(age_ms);
        if self.handover.kept.newest.get(&job).is_none_or(|newest| newest.at_ms < at_ms) {
            let newest = Newest { machine: machine.to_owned(), at_ms };
            self.handover.change(|kept| drop(kept.newest.insert(job, newest)));
        }
        self.copy_next(machine);
    }

    /// A machine asks for what a job has saved.
    pub(super) fn asked_for_saved(&mut self, machine: &str, request: u64, ask: SavedAsk) {
        let Some(to) = self.links.get(machine).map(|link| link.to.clone()) else { return };
        let is_host = self.handover.is_host(ask.job(), machine);
        let folders = self.handover.folders.clone();
        let read = move || {
            let answer = if is_host {
                answer(&folders, &ask)
            } else {
                SavedAnswer::Failed(format!("job {} was not ordered there", ask.job().0))
            };
            #[expect(clippy::let_underscore_must_use, reason = "a machine that is not connected any more asks again")]
            let _ = to.send(ToNode::AnswerSaved { request, answer });
        };
        self.answers.push(Box::new(move || drop(tokio::task::spawn_blocking(read))));
    }

    /// Copies from a machine whatever it has that is newest, one job after the other.
    pub(super) fn copy_next(&mut self, machine: &str) {
        if self.handover.copying.contains_key(machine) {
            return;
        }
        let Some(link) = self.links.get(machine) else { return };
        let next = self.handover.next(machine).filter(|(job, _)| !self.handover.copying.values().any(|it| it == job));
        let Some((job, at_ms)) = next else { return };
        let (line, folders) = (link.saved.line(), self.handover.folders.clone());
        let failures = self.handover.failures.get(&job).copied().unwrap_or(0);
        let retry = (RETRY_MIN * 2_u32.pow(failures.min(6))).min(RETRY_MAX);
        let (routes, copied_machine) = (self.shared.clone(), machine.to_owned());
        let copy = move || {
            let is_wanted =
                |offer: &crate::saved::fetch::Offer| Ok(since_1970(offer.here) > folders.list(job)?.written_ns);
            let fetched = fetch(&|ask| line.ask(ask), &folders, job, is_wanted);
            let taken = match fetched {
                Ok(Fetched::Copied { there_ns, here_ns }) => Some((there_ns, here_ns)),
                // What it has is older: it is not to be taken for the scheduler's.
                Ok(Fetched::Unwanted { there_ns }) => Some((there_ns, 0)),
                Ok(Fetched::Nothing) | Err(_) => None,
            };
            let noted = taken.map(|(there_ns, here_ns)| line.ask(SavedAsk::Taken { job, there_ns, here_ns }));
            if let Some(Err(error)) = noted {
                debug!(machine = copied_machine, %error, "a machine was not told that it was copied: it says so again");
            }
            if fetched.is_err() {
                thread::sleep(retry);
            }
            if let Some(routes) = routes.upgrade() {
                routes.with(|routes| routes.copied(&copied_machine, job, at_ms, fetched));
            }
        };
        self.handover.copying.insert(machine.to_owned(), job);
        if let Err(error) = thread::Builder::new().name("checkpoint-copy".to_owned()).spawn(copy) {
            warn!(machine, %error, "what a job saved cannot be copied yet");
            self.handover.copying.remove(machine);
        }
    }

    fn copied(&mut self, machine: &str, job: JobId, at_ms: u64, fetched: io::Result<Fetched>) {
        self.handover.copying.remove(machine);
        match fetched {
            Ok(fetched) => {
                debug!(machine, job = job.0, ?fetched, "copied what a job has saved");
                self.handover.failures.remove(&job);
                let is_same = |newest: &Newest| newest.machine == machine && newest.at_ms == at_ms;
                if self.handover.kept.newest.get(&job).is_some_and(is_same) {
                    self.handover.change(|kept| drop(kept.newest.remove(&job)));
                }
                if !self.handover.kept.newest.contains_key(&job) {
                    self.release(job);
                }
            }
            Err(error) => {
                let path = self.handover.path(job, machine);
                warn!(machine, job = job.0, path, %error, "what a job has saved cannot be copied: it is tried again");
                let failures = self.handover.failures.entry(job).or_default();
                *failures += 1;
                if *failures >= FAILURES_MAX && self.links.contains_key(machine) {
                    let reason = format!("{path}: what it saved last cannot be fetched from {machine}: {error}");
                    for ReplicaOrder { replica, .. } in self.handover.waiting.remove(&job).unwrap_or_default() {
                        self.ended(replica);
                        let reason = reason.clone();
                        self.observe(Observation::StartFailed { replica, reason, retryable: true });
                    }
                }
            }
        }
        // Others may have waited because this job was being copied.
        let connected: Vec<String> = self.links.keys().cloned().collect();
        connected.iter().for_each(|machine| self.copy_next(machine));
    }

    fn release(&mut self, job: JobId) {
        for order in self.handover.waiting.remove(&job).unwrap_or_default() {
            match self.placed.get(&order.replica) {
                Some(Place::At(machine)) => self.send(machine, start(&order)),
                Some(Place::Here) | None => {
                    if let Some(own) = &mut self.own {
                        pollux_backend::Backend::start(own, &order);
                    }
                }
            }
        }
    }

    /// A machine is gone, and with it what was not copied yet.
    pub(super) fn lose_saved(&mut self, machine: &str) {
        let of_machine = |(job, newest): (&JobId, &Newest)| (newest.machine == machine).then_some(*job);
        let jobs: Vec<JobId> = self.handover.kept.newest.iter().filter_map(of_machine).collect();
        for &job in &jobs {
            let path = self.handover.path(job, machine);
            let has_copy = self.handover.folders.list(job).is_ok_and(|listing| !listing.files.is_empty());
            let rest = if has_copy { "it goes on from what it saved before" } else { "nothing else is saved" };
            warn!(machine, job = job.0, path, "what a job saved last is gone with its machine: {rest}");
            let reason = format!("{path}: what it saved last is gone with {machine}; {rest}");
            match self.handover.waiting.get(&job).and_then(|orders| orders.first()).map(|order| order.replica) {
                Some(replica) => self.observe(Observation::Pending { replica, reason }),
                None => drop(self.handover.lost.insert(job, reason)),
            }
        }
        if !jobs.is_empty() || self.handover.kept.keepers.contains_key(machine) {
            self.handover.change(|kept| {
                kept.newest.retain(|_, newest| newest.machine != machine);
                kept.keepers.remove(machine);
                kept.hosts.retain(|_, machines| {
                    machines.remove(machine);
                    !machines.is_empty()
                });
            });
        }
        jobs.into_iter().for_each(|job| self.release(job));
    }

    /// What a job has saved is deleted everywhere.
    pub(crate) fn drop_saved(&mut self, epoch: Epoch, job: JobId) {
        let Some(hosts) = self.handover.kept.hosts.get(&job).cloned() else { return };
        for machine in &hosts {
            self.send(machine, ToNode::DropSaved { epoch, job });
        }
        self.handover.change(|kept| {
            kept.hosts.remove(&job);
            kept.newest.remove(&job);
        });
        self.handover.lost.remove(&job);
        self.handover.failures.remove(&job);
    }

    /// What a machine says of files.
    pub(super) fn told_of_saved(&mut self, machine: &str, message: FromNode) {
        match message {
            FromNode::Keeps { folder } => self.keeps(machine, folder),
            FromNode::Saved { job, age_ms } => self.saved(machine, job, age_ms),
            FromNode::AskSaved { request, ask } => self.asked_for_saved(machine, request, ask),
            FromNode::AnswerSaved { request, answer } => {
                if let Some(link) = self.links.get(machine) {
                    link.saved.answered(request, answer);
                }
            }
            // Everything else is heard elsewhere.
            _ => {}
        }
    }
}
