use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use pollux_agent::AgentReport;
use pollux_api::{Assignment, AssignmentState, ReadyRequest, Rendezvous, RendezvousRequest, ReportRequest};

use crate::client::{Client, Failure};
use crate::mailbox::{Mailbox, Outgoing};
use crate::{Connection, Termination, WorkerError, backoff};

/// How long the server is asked to wait for news.
const LONG_POLL: Duration = Duration::from_secs(30);
/// A server that answers sooner than asked, without news, is asked again after this long.
const POLL_PAUSE: Duration = Duration::from_millis(200);
/// How long a worker that got `SIGTERM` waits to hear what for: a scheduler that is started again is there by then, and
/// what is left of an ordinary grace period is enough to save.
const EXPLANATION: Duration = Duration::from_secs(8);
/// After this long it asks again.
const ASK_PAUSE: Duration = Duration::from_millis(200);

/// What a worker is to do, as far as it has heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orders {
    /// Train on; if the newest assignment is of another generation, change over to it, or leave if it does not list
    /// this replica.
    Train,
    /// The whole group is to save and exit with 143.
    Stop,
    /// `SIGTERM` came and nobody said what for: save and exit with 143.
    Leave,
}

/// A replica's line to the scheduler. Two threads do the talking; no method waits for them, except [`Self::finish`].
#[derive(Debug)]
pub struct Worker {
    connection: Connection,
    mailbox: Arc<Mailbox>,
    started: Instant,
    termination: Termination,
    /// When the signal was noticed.
    terminated: OnceLock<Instant>,
}

impl Worker {
    /// A worker as the environment says; `None` where there is no scheduler. From then on `SIGTERM` only shows in
    /// [`Self::orders`].
    pub fn from_env() -> Result<Option<Self>, WorkerError> {
        let Some(connection) = Connection::from_env()? else { return Ok(None) };
        Self::start(connection, Termination::install()?).map(Some)
    }

    /// A worker that speaks over `connection`.
    pub fn start(connection: Connection, termination: Termination) -> Result<Self, WorkerError> {
        let client = Arc::new(Client::new(&connection)?);
        let mailbox = Arc::new(Mailbox::default());
        let worker = Self { connection, mailbox, started: Instant::now(), termination, terminated: OnceLock::new() };
        for (name, talk) in [("pollux-listen", listen as fn(&Client, &Mailbox)), ("pollux-send", send)] {
            let (client, mailbox) = (Arc::clone(&client), Arc::clone(&worker.mailbox));
            let thread = thread::Builder::new().name(name.to_owned()).spawn(move || talk(&client, &mailbox));
            thread.map_err(WorkerError::Thread)?;
        }
        Ok(worker)
    }

    /// Who this is and where the scheduler is.
    pub const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The newest assignment heard of; `None` until the scheduler has answered once.
    pub fn assignment(&self) -> Option<Arc<Assignment>> {
        self.mailbox.assignment()
    }

    /// Whether the scheduler has answered yet, for programs that ask before their first step. It is an error if this
    /// worker is not let in, or if nobody has answered for so long since it was started: the user can still mend both.
    pub fn answered(&self, patience: Duration) -> Result<bool, WorkerError> {
        if self.mailbox.assignment().is_some() {
            return Ok(true);
        }
        let url = self.connection.url.clone();
        match self.mailbox.failure() {
            Some(Failure::Refused(status)) => {
                Err(WorkerError::Refused { url, status: status.as_u16(), job: self.connection.job.clone() })
            }
            Some(Failure::Untrusted(reason)) => Err(WorkerError::Untrusted { url, reason }),
            failure if self.started.elapsed() >= patience => {
                let reason = match failure {
                    Some(Failure::Away(reason)) => reason,
                    Some(failure) => failure.to_string(),
                    None => "no answer".to_owned(),
                };
                Err(WorkerError::NoServer { url, reason })
            }
            _ => Ok(false),
        }
    }

    /// What to do. To be asked at every step.
    pub fn orders(&self) -> Orders {
        let assignment = self.mailbox.assignment();
        if assignment.as_ref().is_some_and(|assignment| assignment.state == AssignmentState::Stop) {
            return Orders::Stop;
        }
        if !self.termination.requested() {
            return Orders::Train;
        }
        let noticed = self.terminated.get_or_init(|| {
            self.mailbox.ask();
            Instant::now()
        });
        let listed = assignment.is_none_or(|assignment| {
            assignment.replicas.iter().any(|replica| replica.replica == self.connection.replica)
        });
        if leaves(listed, noticed.elapsed()) { Orders::Leave } else { Orders::Train }
    }

    /// Whether `SIGTERM` came, whatever it is for.
    pub fn terminated(&self) -> bool {
        self.termination.requested()
    }

    /// Tells what the agent of a generation has learned. Of several that wait only the newest is told.
    pub fn report(&self, generation: u64, report: AgentReport) {
        self.mailbox.post_report(ReportRequest { generation, report });
    }

    /// Tells that every rank of a generation trains, after a pause that a fresh group does not know.
    pub fn ready(&self, generation: u64, pause_s: Option<f64>) {
        self.mailbox.post_ready(ReadyRequest { generation, pause_s });
    }

    /// Tells the others of a generation where this process, its rank 0, waits for them: on this port of its host.
    pub fn publish_rendezvous(&self, generation: u64, port: u16) {
        let address = self.connection.host.clone();
        self.mailbox.post_rendezvous(RendezvousRequest { generation, address, port });
    }

    /// Gives the last words some time to be told before the process ends; false if they were not.
    pub fn finish(&self, patience: Duration) -> bool {
        self.mailbox.flush(patience)
    }
}

/// Whether a worker leaves of its own accord so long after a signal. One that is no longer listed knows what it is for,
/// and trains until its group has changed.
fn leaves(listed: bool, since_signal: Duration) -> bool {
    listed && since_signal >= EXPLANATION
}

impl Drop for Worker {
    /// The threads end by themselves: one may still be waiting for an answer.
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

/// Hears of assignments until the group is told to stop.
fn listen(client: &Client, mailbox: &Mailbox) {
    let mut after = 0;
    let mut unmet = false;
    let mut trouble = FailureNotice::new("assignments", "asking again");
    loop {
        let asked = Instant::now();
        let pause = match client.assignment(after, unmet, LONG_POLL) {
            Ok(assignment) => {
                trouble.over();
                let (generation, state) = (assignment.generation, assignment.state);
                let is_unmet = assignment.rendezvous == Rendezvous::Awaited;
                let counts = mailbox.heard(assignment);
                if counts && state == AssignmentState::Stop {
                    return;
                }
                let news = counts && (generation > after || (generation == after && unmet && !is_unmet));
                if counts && generation >= after {
                    (after, unmet) = (generation, is_unmet);
                }
                if news { Duration::ZERO } else { POLL_PAUSE.saturating_sub(asked.elapsed()) }
            }
            Err(failure) => {
                let pause = trouble.pause(&failure);
                mailbox.unanswered(failure);
                pause
            }
        };
        if !mailbox.rest(pause, false) {
            return;
        }
    }
}

/// Tells what is in the mailbox, as soon as somebody listens.
fn send(client: &Client, mailbox: &Mailbox) {
    let mut trouble = FailureNotice::new("reports", "training goes on");
    while let Some(message) = mailbox.next() {
        let sent = match &message {
            Outgoing::Ask => client.assignment(0, false, Duration::ZERO).map(|assignment| {
                // It was asked for, whether it counts or not.
                let _ = mailbox.heard(assignment);
            }),
            Outgoing::Rendezvous(rendezvous) => client.rendezvous(rendezvous),
            Outgoing::Ready(ready) => client.ready(ready),
            Outgoing::Report(report) => client.report(report),
        };
        match sent {
            Ok(()) => {
                trouble.over();
                mailbox.settle();
            }
            // The words of a generation that is over interest nobody.
            Err(Failure::Stale) => mailbox.settle(),
            Err(failure) => {
                let mut pause = trouble.pause(&failure);
                if matches!(message, Outgoing::Ask) {
                    pause = pause.min(ASK_PAUSE);
                }
                match failure {
                    Failure::Rejected(_) | Failure::Stale => mailbox.settle(),
                    Failure::Away(_) | Failure::Untrusted(_) | Failure::Refused(_) | Failure::Garbage(_) => {
                        mailbox.put_back(message);
                    }
                }
                if !mailbox.rest(pause, true) {
                    return;
                }
            }
        }
    }
}

/// Failures in a row; the user is told of the first and of the end.
struct FailureNotice {
    subject: &'static str,
    outlook: &'static str,
    failures: u32,
    refused: bool,
}

impl FailureNotice {
    const fn new(subject: &'static str, outlook: &'static str) -> Self {
        Self { subject, outlook, failures: 0, refused: false }
    }

    /// How long to wait before the next try. Who is refused will hardly be let in a moment later.
    fn pause(&mut self, failure: &Failure) -> Duration {
        let refused = matches!(failure, Failure::Refused(_) | Failure::Rejected(_));
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 || refused && !self.refused {
            eprintln!("pollux: {}: {failure}; {}", self.subject, self.outlook);
        }
        self.refused = refused;
        if refused { backoff::LONGEST } else { backoff::after_failures(self.failures) }
    }

    fn over(&mut self) {
        if self.failures > 0 {
            eprintln!("pollux: {}: the scheduler is back", self.subject);
        }
        (self.failures, self.refused) = (0, false);
    }
}

#[cfg(test)]
mod tests {
    use ureq::http::StatusCode;

    use super::*;

    #[test]
    fn a_signal_that_nobody_explains_is_obeyed_after_a_while_and_one_that_is_explained_never() {
        assert!(!leaves(true, EXPLANATION - Duration::from_millis(1)));
        assert!(leaves(true, EXPLANATION));
        assert!(!leaves(false, EXPLANATION * 1000));
    }

    #[test]
    fn who_is_refused_does_not_hammer_on_the_door() {
        let mut trouble = FailureNotice::new("assignments", "trains on");
        assert_eq!(trouble.pause(&Failure::Refused(StatusCode::UNAUTHORIZED)), backoff::LONGEST);
        assert!(trouble.pause(&Failure::Away("no answer".to_owned())) < backoff::LONGEST);
    }
}
