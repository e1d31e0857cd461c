use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use pollux_api::{Assignment, ReadyRequest, RendezvousRequest, ReportRequest, Token};
use pollux_backend::{Checkpoints, LogChunk, LogReader, LogStart, Observation, ReplicaId};
use pollux_job::{JobId, JobSpec};
use pollux_policy::Timestamp;
use pollux_store::{HistoryEntry, Reader, StoreError};
use tokio::sync::{broadcast, oneshot, watch};

use crate::assignments::Assignments;
use crate::clock::wall;
use crate::reader_pool::ReaderPool;
use crate::tokens::{Grant, Recognised, TokenDigest, Tokens, digest};
use crate::{Caller, Cluster, Metrics, Refused, User};

/// So many may wait for an answer at once.
const WAITING_MAX: usize = 10_000;

/// How everybody speaks to the scheduler. Copies are cheap.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) messages: Sender<Message>,
    pub(crate) waiting: Arc<AtomicUsize>,
    pub(crate) assignments: Arc<Assignments>,
    pub(crate) tokens: Tokens,
    pub(crate) readers: ReaderPool,
    pub(crate) history: broadcast::Sender<HistoryEntry>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) logs: Arc<dyn LogReader>,
    pub(crate) checkpoints: Arc<dyn Checkpoints>,
}

/// What a user may do with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// End it.
    Cancel,
    /// Set it aside.
    Pause,
    /// Let it go on.
    Resume,
}

/// What a user may do with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// Empty it, and use it no more.
    Drain,
    /// Use it again.
    Undrain,
}

/// An answer that will come.
#[derive(Debug)]
#[must_use = "it may be a refusal"]
pub struct Answer<T>(oneshot::Receiver<Result<T, Refused>>);

impl<T> Answer<T> {
    /// Waits for it in a task.
    pub async fn get(self) -> Result<T, Refused> {
        self.0.await.unwrap_or(Err(Refused::Away))
    }

    /// Waits for it in a thread, which must not be one of an asynchronous runtime.
    pub fn wait(self) -> Result<T, Refused> {
        self.0.blocking_recv().unwrap_or(Err(Refused::Away))
    }
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Refused>>;
pub(crate) type Look = Box<dyn FnOnce(&Cluster<'_>) + Send>;

/// What the scheduler is told.
pub(crate) enum Message {
    Submit(Box<JobSpec>, Reply<JobId>),
    Act(JobId, Action, Reply<()>),
    ActOnNode(String, NodeAction, Reply<()>),
    Report(JobId, Box<ReportRequest>, Reply<()>),
    Ready(JobId, ReadyRequest, Reply<()>),
    Rendezvous(JobId, RendezvousRequest, Reply<()>),
    Grant { grant: Grant, replaces: bool, reply: Reply<()> },
    Revoke(String, Reply<()>),
    TokenUsed(TokenDigest, Timestamp),
    Look(Look),
    ShutDown(Reply<()>),
    LimitPages(u32),
    Observed(Observation),
}

impl Handle {
    /// Submits a job. The answer comes when it is durable.
    pub fn submit(&self, spec: JobSpec) -> Answer<JobId> {
        self.ask(|reply| Message::Submit(Box::new(spec), reply))
    }

    /// Cancels, pauses or resumes a job.
    pub fn act(&self, job: JobId, action: Action) -> Answer<()> {
        self.ask(|reply| Message::Act(job, action, reply))
    }

    /// Drains or undrains a node, by its name.
    pub fn act_on_node(&self, node: &str, action: NodeAction) -> Answer<()> {
        self.ask(|reply| Message::ActOnNode(node.to_owned(), action, reply))
    }

    /// Passes on what the agent of a job says.
    pub fn report(&self, job: JobId, report: ReportRequest) -> Answer<()> {
        self.ask(|reply| Message::Report(job, Box::new(report), reply))
    }

    /// Passes on that a group trains.
    pub fn ready(&self, job: JobId, ready: ReadyRequest) -> Answer<()> {
        self.ask(|reply| Message::Ready(job, ready, reply))
    }

    /// Passes on where a group meets.
    pub fn rendezvous(&self, job: JobId, rendezvous: RendezvousRequest) -> Answer<()> {
        self.ask(|reply| Message::Rendezvous(job, rendezvous, reply))
    }

    /// Answers a question about the cluster. One that panics is refused, and the scheduler goes on: whoever looks
    /// changes nothing, so that nothing is left half done.
    pub fn look<T: Send + 'static>(&self, look: impl FnOnce(&Cluster<'_>) -> T + Send + 'static) -> Answer<T> {
        self.ask(|reply| {
            Message::Look(Box::new(move |cluster| {
                let seen = panic::catch_unwind(AssertUnwindSafe(|| look(cluster)));
                // Whoever asked may have gone.
                drop(reply.send(seen.map_err(|_| Refused::Broken)));
            }))
        })
    }

    /// What is counted and measured.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The assignment of a job that has or had a group, and its changes.
    pub fn assignment(&self, job: JobId) -> Option<watch::Receiver<Assignment>> {
        self.assignments.watch(job)
    }

    /// Whom a token belongs to.
    pub fn caller(&self, token: &str) -> Option<Caller> {
        let now = wall();
        let Recognised { caller, used } = self.tokens.recognise(token, now)?;
        if let Some(digest) = used {
            // A scheduler that has ended has no use for it.
            let _ = self.messages.send(Message::TokenUsed(digest, now));
        }
        Some(caller)
    }

    /// Tokens of users.
    pub fn tokens(&self) -> Vec<Token> {
        self.tokens.list()
    }

    /// Makes a token that of a user who has none, until a moment or until it is revoked.
    pub fn grant(&self, user: User, token: &str, expires: Option<Timestamp>) -> Answer<()> {
        let grant = Grant { user, digest: digest(token), created: wall(), expires };
        self.ask(|reply| Message::Grant { grant, replaces: false, reply })
    }

    /// Makes a token that of a user, in place of another.
    pub(crate) fn replace_token(&self, user: User, token: &str) -> Answer<()> {
        let grant = Grant { user, digest: digest(token), created: wall(), expires: None };
        self.ask(|reply| Message::Grant { grant, replaces: true, reply })
    }

    /// Takes a user's token back.
    pub fn revoke(&self, label: &str) -> Answer<()> {
        self.ask(|reply| Message::Revoke(label.to_owned(), reply))
    }

    /// Reads ended jobs or history, beside the scheduler.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refused> {
        self.readers.read(read).await
    }

    /// Reads what a replica has written, beside the scheduler.
    pub async fn read_log(&self, replica: ReplicaId, from: LogStart, bytes_max: usize) -> io::Result<LogChunk> {
        let (sender, answer) = oneshot::channel();
        // Who asked may have gone.
        self.logs.read(replica, from, bytes_max, Box::new(|chunk| drop(sender.send(chunk))));
        answer.await.unwrap_or_else(|_| Err(io::Error::other("the backend has ended")))
    }

    /// Where a job saves.
    pub fn checkpoint_dir(&self, job: JobId) -> String {
        self.checkpoints.location(job)
    }

    /// Everything that happens from now on. Who reads too slowly misses some of it, and finds it in the store.
    pub fn history(&self) -> broadcast::Receiver<HistoryEntry> {
        self.history.subscribe()
    }

    /// Saves and ends the scheduler. Replicas run on.
    pub fn shut_down(&self) -> Answer<()> {
        self.ask(Message::ShutDown)
    }

    /// Lets the journal grow to so many pages and no further: a small disk, for tests.
    #[doc(hidden)]
    pub fn limit_pages(&self, pages: u32) {
        // A scheduler that has ended writes nothing.
        let _ = self.messages.send(Message::LimitPages(pages));
    }

    fn ask<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            // The other end is right here.
            let _ = reply.send(Err(Refused::Busy { limit: WAITING_MAX }));
        } else {
            // A scheduler that has ended drops the reply, which is an answer.
            let _ = self.messages.send(message(reply));
        }
        Answer(answer)
    }
}
