use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pollux_api::{Assignment, AssignmentState, ReadyRequest, Rendezvous, RendezvousRequest, ReportRequest};

use crate::client::Failure;

/// What the training loop and the threads that talk to the server leave for each other.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    content: Mutex<Content>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Content {
    assignment: Option<Arc<Assignment>>,
    /// That of the newest scheduler heard of.
    epoch: u64,
    /// Why the last question for it came to nothing.
    failure: Option<Failure>,
    report: Option<ReportRequest>,
    ready: Option<ReadyRequest>,
    rendezvous: Option<RendezvousRequest>,
    /// The assignment is to be asked for at once.
    ask: bool,
    /// A message was taken and is not yet settled.
    sending: bool,
    closed: bool,
}

/// One thing to tell the server, most urgent first.
#[derive(Clone, Debug)]
pub(crate) enum Outgoing {
    Ask,
    Rendezvous(RendezvousRequest),
    Ready(ReadyRequest),
    Report(Box<ReportRequest>),
}

impl Mailbox {
    pub(crate) fn assignment(&self) -> Option<Arc<Assignment>> {
        self.lock().assignment.clone()
    }

    /// Keeps the newest: answers may overtake each other, a group that was told to stop does not train again, and one that
    /// meets somewhere does not do without. Returns whether it counts at all: what a scheduler says after its successor was heard
    /// does not.
    pub(crate) fn heard(&self, assignment: Assignment) -> bool {
        let mut content = self.lock();
        let epoch = assignment.epoch.unwrap_or(content.epoch);
        if epoch < content.epoch {
            return false;
        }
        content.epoch = epoch;
        let newer = content.assignment.as_ref().is_none_or(|known| {
            let trains_again = assignment.state == AssignmentState::Run && known.state == AssignmentState::Stop;
            let is_known = assignment.rendezvous == Rendezvous::Awaited && known.rendezvous != Rendezvous::Awaited;
            let is_same = assignment.generation == known.generation;
            assignment.generation > known.generation || (is_same && !trains_again && !is_known)
        });
        if newer {
            content.assignment = Some(Arc::new(assignment));
            self.changed.notify_all();
        }
        true
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.lock().failure.clone()
    }

    pub(crate) fn unanswered(&self, failure: Failure) {
        self.lock().failure = Some(failure);
    }

    pub(crate) fn post_report(&self, report: ReportRequest) {
        self.lock().report = Some(report);
        self.changed.notify_all();
    }

    pub(crate) fn post_ready(&self, ready: ReadyRequest) {
        self.lock().ready = Some(ready);
        self.changed.notify_all();
    }

    pub(crate) fn post_rendezvous(&self, rendezvous: RendezvousRequest) {
        self.lock().rendezvous = Some(rendezvous);
        self.changed.notify_all();
    }

    pub(crate) fn ask(&self) {
        self.lock().ask = true;
        self.changed.notify_all();
    }

    /// Waits for something to tell; `None` when the worker is gone.
    pub(crate) fn next(&self) -> Option<Outgoing> {
        let mut content = self.lock();
        loop {
            if content.closed {
                return None;
            }
            if let Some(message) = content.take() {
                content.sending = true;
                return Some(message);
            }
            content = self.changed.wait(content).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The message taken last was delivered, or will never be.
    pub(crate) fn settle(&self) {
        self.lock().sending = false;
        self.changed.notify_all();
    }

    /// The message taken last could not be delivered: it goes back, unless a newer one took its place.
    pub(crate) fn put_back(&self, message: Outgoing) {
        let mut content = self.lock();
        content.sending = false;
        match message {
            Outgoing::Ask => content.ask = true,
            Outgoing::Rendezvous(rendezvous) => {
                content.rendezvous.get_or_insert(rendezvous);
            }
            Outgoing::Ready(ready) => {
                content.ready.get_or_insert(ready);
            }
            Outgoing::Report(report) => {
                content.report.get_or_insert(*report);
            }
        }
    }

    /// Waits before another try; false when the worker is gone. A question that must be answered at once ends it early.
    pub(crate) fn rest(&self, pause: Duration, until_asked: bool) -> bool {
        let deadline = Instant::now() + pause;
        let mut content = self.lock();
        let asked_before = content.ask;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if content.closed || left.is_zero() || (until_asked && content.ask && !asked_before) {
                return !content.closed;
            }
            content = self.changed.wait_timeout(content, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until everything was told; false if that takes longer than `patience`.
    pub(crate) fn flush(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut content = self.lock();
        loop {
            if !content.sending && content.report.is_none() && content.ready.is_none() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            content = self.changed.wait_timeout(content, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// No thread panics while it holds the lock, and if one did the content would still be whole.
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    fn take(&mut self) -> Option<Outgoing> {
        if std::mem::take(&mut self.ask) {
            return Some(Outgoing::Ask);
        }
        if let Some(rendezvous) = self.rendezvous.take() {
            return Some(Outgoing::Rendezvous(rendezvous));
        }
        if let Some(ready) = self.ready.take() {
            return Some(Outgoing::Ready(ready));
        }
        self.report.take().map(|report| Outgoing::Report(Box::new(report)))
    }
}
