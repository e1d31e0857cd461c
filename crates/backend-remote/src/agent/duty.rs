//! What an agent does while it is connected.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread;
use std::time::Duration;

use pollux_backend::{Backend, Observation, ReplicaId, ReplicaOrder};
use pollux_backend_local::{LocalBackend, Occupancy};
use pollux_policy::JobId;
use tokio::io::{AsyncWrite, ReadHalf};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use super::connection::Stream;
use super::keeper::Keeper;
use super::term::Term;
use super::{Agent, AgentError, Ended};
use crate::protocol::{
    self, FromNode, GREETING_MAX, HEARTBEAT, Hello, Leave, PROTOCOL, SILENCE_MAX, SavedAnswer, SharedFolder, ToNode,
};
use crate::saved::line::LineEnd;

/// How often an agent looks whether anything runs.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// What is read of a log at once, whatever was asked for.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// How often it looks whether jobs have saved, and how long what they saved has to lie still while they run.
const SAVED_INTERVAL: Duration = Duration::from_secs(5);
const SETTLES: Duration = Duration::from_secs(1);
/// What the scheduler may take to copy what is left on a machine that leaves.
const HAND_OVER_MAX: Duration = Duration::from_secs(300);
const HAND_OVER_LOOK: Duration = Duration::from_millis(200);

impl Agent {
    /// Greets the scheduler, and does as it says until the connection is over.
    pub(super) async fn serve(&mut self, stream: Stream, welcomed: impl FnOnce()) -> Result<Ended, AgentError> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let replicas = self
            .local
            .replicas()
            .map_err(|error| AgentError::State { path: self.settings.state_dir.clone(), reason: error.to_string() })?;
        let hello = FromNode::Hello(Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: self.settings.name.clone(),
            credential: self.identity.credential(),
            cluster: self.identity.cluster(),
            address: self.address.clone(),
            nodes: self.local.nodes().iter().map(|node| node.name.clone()).collect(),
            replicas: replicas.clone(),
            end: self.term.ending(Instant::now()),
        });
        let greeted = async {
            protocol::write(&mut writer, &hello).await?;
            loop {
                match protocol::read(&mut reader).await? {
                    Some(ToNode::Welcome { checkpoints, cluster, version, .. }) => {
                        return Ok(Ok((checkpoints, cluster, version)));
                    }
                    Some(ToNode::Refused { reason, removed }) => return Ok(Err((reason, removed))),
                    Some(_) | None => {}
                }
            }
        };
        let (folder, cluster) = match timeout(GREETING_MAX, greeted).await {
            Err(_) => return Ok(Ended::Broken("the scheduler does not answer a greeting".to_owned())),
            Ok(Err(error)) => return Ok(Ended::Broken(said(&error))),
            Ok(Ok(Err((reason, None)))) => return Ok(Ended::Refused(reason)),
            Ok(Ok(Err((reason, Some(leave))))) => {
                self.end_all(leave).await?;
                return Ok(Ended::Left(reason));
            }
            Ok(Ok(Ok((folder, cluster, version)))) => {
                info!(scheduler = version, "connected");
                self.identity.has_joined(cluster.clone())?;
                (folder, cluster)
            }
        };
        welcomed();
        let keeper = self.keeper(folder.as_ref(), &cluster);
        let duty =
            |replicas: Vec<ReplicaId>| Duty::new(folder.as_ref(), keeper.clone(), replicas.into_iter().collect());
        let ended = self.on_duty(duty(replicas), &mut reader, &mut writer, false).await?;
        match ended {
            Done::Broken(error) => Ok(Ended::Broken(said(&error))),
            Done::Leaves(leave) => {
                let left = keeper.is_some().then(|| duty(Vec::new()));
                self.leave(leave, left, &mut reader, &mut writer).await
            }
        }
    }

    /// Ends what runs here, has the scheduler copy what jobs have saved here, and says that it is done.
    async fn leave(
        &mut self,
        leave: Leave,
        keeps: Option<Duty>,
        reader: &mut ReadHalf<Stream>,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Ended, AgentError> {
        tokio::select! {
            ended = self.end_all(leave) => ended?,
            // It comes back, and is told again to leave.
            error = keep_alive(writer) => return Ok(Ended::Broken(said(&error))),
        }
        if let Some(duty) = keeps {
            match timeout(HAND_OVER_MAX, self.on_duty(duty, reader, writer, true)).await {
                Ok(Ok(Done::Broken(error))) => return Ok(Ended::Broken(said(&error))),
                Ok(Err(error)) => return Err(error),
                Ok(Ok(Done::Leaves(_))) => {}
                Err(_) => {
                    warn!("this machine leaves, and the scheduler has not copied all that its jobs saved");
                }
            }
        }
        match timeout(GREETING_MAX, protocol::write(writer, &FromNode::Left)).await {
            Ok(Ok(())) => Ok(Ended::Left(format!("{} was removed from the cluster", self.settings.name))),
            Ok(Err(error)) => Ok(Ended::Broken(said(&error))),
            Err(_) => Ok(Ended::Broken("the scheduler does not listen".to_owned())),
        }
    }

    /// Where jobs save that is not the scheduler's folder, if that is so.
    fn keeper(&self, folder: Option<&SharedFolder>, cluster: &str) -> Option<Keeper> {
        let folder = folder?;
        let is_own = self.settings.local.checkpoint_dir.is_some() || !is_seen(folder);
        is_own.then(|| Keeper::new(self.local.checkpoint_dir(), cluster))
    }

    /// Does as it is told until the connection is over or the machine leaves; or, `only_hands_over`, until the scheduler has all
    /// that jobs have saved here.
    async fn on_duty(
        &mut self,
        duty: Duty,
        reader: &mut ReadHalf<Stream>,
        writer: &mut (impl AsyncWrite + Unpin),
        only_hands_over: bool,
    ) -> Result<Done, AgentError> {
        let (answers, answered) = mpsc::unbounded_channel();
        let (brought, mut ready) = mpsc::unbounded_channel();
        let occupancy = self.local.occupancy();
        let keeper = duty.keeper.clone();
        let Self { local, identity, seen, term, drained, .. } = self;
        let wishes = wish(term, &occupancy, drained.subscribe(), answers.clone());
        let line = LineEnd::new({
            let answers = answers.clone();
            move |request, ask| answer(&answers, FromNode::AskSaved { request, ask })
        });
        // Both are used between two waits only.
        let (local, duty) = (RefCell::new(local), RefCell::new(duty));
        let orders = async {
            loop {
                let message = match timeout(SILENCE_MAX, protocol::read(reader)).await {
                    Ok(Ok(message)) => message,
                    Ok(Err(error)) => return Ok(Done::Broken(error)),
                    Err(_) => return Ok(Done::Broken(io::Error::new(ErrorKind::TimedOut, "nothing heard"))),
                };
                match message {
                    Some(ToNode::Leave(leave)) if !only_hands_over => return Ok(Done::Leaves(leave)),
                    Some(ToNode::Alive { certificate: Some(pin) }) => identity.trust(&pin)?,
                    Some(order) => {
                        let connection = Connection { answers: &answers, line: &line, brought: &brought };
                        duty.borrow_mut().carry_out(&mut local.borrow_mut(), order, &connection);
                    }
                    None => {}
                }
            }
        };
        let begins = async {
            while let Some((job, outcome)) = ready.recv().await {
                duty.borrow_mut().begin(&mut local.borrow_mut(), job, &outcome, &answers);
            }
            std::future::pending::<Done>().await
        };
        let handed_over = async {
            loop {
                tokio::time::sleep(HAND_OVER_LOOK).await;
                match keeper.as_ref().map_or(Ok(Vec::new()), |keeper| keeper.unhanded(Duration::ZERO)) {
                    Ok(left) if left.is_empty() => return Done::Leaves(Leave::default()),
                    Ok(_) => {}
                    Err(error) => return Done::Broken(error),
                }
            }
        };
        tokio::select! {
            done = orders => done,
            done = begins => Ok(done),
            done = handed_over, if only_hands_over => Ok(done),
            error = send(writer, seen, answered, keeper.as_ref()) => Ok(Done::Broken(error)),
            error = wishes, if !only_hands_over => Ok(Done::Broken(error)),
        }
    }

    /// Ends every replica, and waits until nothing of them runs.
    async fn end_all(&mut self, Leave { epoch, grace_ms }: Leave) -> Result<(), AgentError> {
        let failed = |reason: String| AgentError::State { path: self.settings.state_dir.clone(), reason };
        let replicas = self.local.replicas().map_err(|error| failed(error.to_string()))?;
        info!(replicas = replicas.len(), "this machine leaves: what runs here is told to end");
        let mut left: BTreeSet<ReplicaId> = replicas.into_iter().collect();
        for replica in &left {
            self.local.stop(epoch, *replica, Duration::from_millis(grace_ms));
        }
        while !left.is_empty() {
            match self.seen.recv().await {
                Some(Observation::Exited { replica, .. } | Observation::StartFailed { replica, .. }) => {
                    left.remove(&replica);
                }
                Some(Observation::Superseded { by }) => {
                    return Err(failed(format!("it was told to leave in the name of an earlier scheduler than {by}")));
                }
                // Nothing else is an end.
                Some(_) => {}
                None => return Ok(()),
            }
        }
        self.local.keep_only(epoch, &[]);
        Ok(())
    }
}

/// Why a connection is over.
enum Done {
    Broken(io::Error),
    Leaves(Leave),
}

/// What an agent has to know of the scheduler that it is connected to.
struct Duty {
    /// Below which the scheduler's folders of jobs are.
    folder: String,
    /// Where jobs save, if not there.
    keeper: Option<Keeper>,
    /// Replicas that have a folder here.
    replicas: BTreeSet<ReplicaId>,
    /// Orders that wait until the newest that their job saved is here.
    waiting: BTreeMap<JobId, Vec<ReplicaOrder>>,
}

/// By which the scheduler is told and asked.
struct Connection<'a> {
    answers: &'a UnboundedSender<FromNode>,
    line: &'a LineEnd,
    brought: &'a UnboundedSender<(JobId, io::Result<()>)>,
}

impl Duty {
    fn new(folder: Option<&SharedFolder>, keeper: Option<Keeper>, replicas: BTreeSet<ReplicaId>) -> Self {
        let folder = folder.map_or_else(String::new, |folder| folder.path.clone());
        Self { folder, keeper, replicas, waiting: BTreeMap::new() }
    }

    fn carry_out(&mut self, local: &mut LocalBackend, order: ToNode, connection: &Connection<'_>) {
        let answers = connection.answers;
        match order {
            ToNode::Adopt { epoch, mut replicas } => {
                replicas.retain(|replica| !self.waits(*replica));
                local.adopt(epoch, &replicas);
            }
            ToNode::Start { order, secrets } => {
                self.start(local, ReplicaOrder { secrets, ..*order }, connection);
            }
            ToNode::Stop { epoch, replica, grace_ms } => {
                self.waiting.values_mut().for_each(|orders| orders.retain(|order| order.replica != replica));
                local.stop(epoch, replica, Duration::from_millis(grace_ms));
            }
            ToNode::Forget { epoch, replica } => local.forget(epoch, replica),
            ToNode::KeepOnly { epoch, replicas } => local.keep_only(epoch, &replicas),
            ToNode::ReadLog { request, replica, from, bytes_max } => {
                let answers = answers.clone();
                let bytes_max = bytes_max.min(PIECE_BYTES_MAX) as usize;
                let told = move |read: io::Result<_>| answer(&answers, FromNode::Log { request, piece: read.into() });
                local.logs().read(replica, from.into(), bytes_max, Box::new(told));
            }
            ToNode::AskSaved { request, ask } => {
                let (answers, keeper) = (answers.clone(), self.keeper.clone());
                let read = move || {
                    let unkept =
                        || SavedAnswer::Failed("jobs save nothing here but in the scheduler's folder".to_owned());
                    let said = keeper.map_or_else(unkept, |keeper| keeper.answer(&ask));
                    answer(&answers, FromNode::AnswerSaved { request, answer: said });
                };
                drop(tokio::task::spawn_blocking(read));
            }
            ToNode::AnswerSaved { request, answer } => connection.line.answered(request, answer),
            ToNode::DropSaved { epoch, job } => match (local.admit(epoch), self.keeper.clone()) {
                (Ok(()), Some(keeper)) => drop(tokio::task::spawn_blocking(move || {
                    if let Err(error) = keeper.discard(job) {
                        warn!(job = job.0, %error, "what a job has saved here cannot be deleted");
                    }
                })),
                (Ok(()), None) => {}
                (Err(error), _) => warn!(job = job.0, %error, "what a job has saved here is not deleted"),
            },
            // Said at other times, or by a later version.
            ToNode::Welcome { .. }
            | ToNode::Refused { .. }
            | ToNode::Leave(_)
            | ToNode::Alive { .. }
            | ToNode::Unknown => {}
        }
    }

    fn waits(&self, replica: ReplicaId) -> bool {
        self.waiting.values().flatten().any(|order| order.replica == replica)
    }

    fn start(&mut self, local: &mut LocalBackend, order: ReplicaOrder, connection: &Connection<'_>) {
        let (job, replica) = (order.job, order.replica);
        // What was started before is not looked at again.
        let keeper = self.keeper.as_ref().filter(|_| !self.replicas.contains(&replica));
        let Some(keeper) = keeper.filter(|_| Path::new(&order.checkpoint_dir).starts_with(&self.folder)) else {
            self.replicas.insert(replica);
            return local.start(&order);
        };
        let (keeper, restores) = (keeper.clone(), order.restores);
        let order = keeper.kept_here(order);
        if let Some(orders) = self.waiting.get_mut(&job) {
            return orders.push(order);
        }
        if !restores {
            self.replicas.insert(replica);
            return local.start(&order);
        }
        self.waiting.insert(job, vec![order]);
        let (line, brought) = (connection.line.line(), connection.brought.clone());
        let bring = move || {
            #[expect(clippy::let_underscore_must_use, reason = "over another connection it is ordered again")]
            let _ = brought.send((job, keeper.bring(&|ask| line.ask(ask), job)));
        };
        if let Err(error) = thread::Builder::new().name("checkpoint-copy".to_owned()).spawn(bring) {
            #[expect(clippy::let_underscore_must_use, reason = "over another connection it is ordered again")]
            let _ = connection.brought.send((job, Err(error)));
        }
    }

    /// What a job saved is here, or cannot be.
    fn begin(
        &mut self,
        local: &mut LocalBackend,
        job: JobId,
        outcome: &io::Result<()>,
        answers: &UnboundedSender<FromNode>,
    ) {
        for order in self.waiting.remove(&job).unwrap_or_default() {
            let replica = order.replica;
            match outcome {
                Ok(()) => {
                    self.replicas.insert(replica);
                    local.start(&order);
                }
                Err(error) => {
                    let folder = &order.checkpoint_dir;
                    let reason =
                        format!("{folder}: what the job saved last cannot be fetched from the scheduler: {error}");
                    warn!(replica = replica.0, reason, "a replica is not started");
                    answer(answers, FromNode::StartFailed { replica, reason, retryable: true });
                }
            }
        }
    }
}

fn answer(answers: &UnboundedSender<FromNode>, message: FromNode) {
    #[expect(clippy::let_underscore_must_use, reason = "whoever asked over a connection that is over asks again")]
    let _ = answers.send(message);
}

/// Whether this machine sees the scheduler's folder, at the same path.
fn is_seen(folder: &SharedFolder) -> bool {
    let mark = fs::read_to_string(Path::new(&folder.path).join(SharedFolder::MARK));
    mark.is_ok_and(|text| serde_json::from_str(&text).is_ok_and(|mark: String| mark == folder.mark))
}

/// Sends what is seen and answered until that cannot be written.
async fn send(
    writer: &mut (impl AsyncWrite + Unpin),
    seen: &mut UnboundedReceiver<Observation>,
    mut answered: UnboundedReceiver<FromNode>,
    keeper: Option<&Keeper>,
) -> io::Error {
    let mut heartbeat = interval(HEARTBEAT);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look = interval(SAVED_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    if let Some(keeper) = keeper {
        let keeps = FromNode::Keeps { folder: keeper.folder().to_string_lossy().into_owned() };
        if let Err(error) = protocol::write(writer, &keeps).await {
            return error;
        }
    }
    loop {
        let (message, settles) = tokio::select! {
            // Before a job is known to have ended here, it is known what it has saved here.
            Some(seen) = seen.recv() => {
                let settles = matches!(seen, Observation::Exited { .. }).then_some(Duration::ZERO);
                (seen.into(), settles)
            }
            Some(answer) = answered.recv() => (answer, None),
            _ = look.tick() => (FromNode::Alive, Some(SETTLES)),
            _ = heartbeat.tick() => (FromNode::Alive, None),
        };
        let saved = match (keeper, settles) {
            (Some(keeper), Some(settles)) => keeper.unhanded(settles).unwrap_or_else(|error| {
                warn!(folder = %keeper.folder().display(), %error, "what jobs have saved here cannot be looked at");
                Vec::new()
            }),
            (None, _) | (_, None) => Vec::new(),
        };
        let saved = saved.into_iter().map(|(job, age_ms)| FromNode::Saved { job, age_ms });
        for message in saved.chain([message]) {
            if let Err(error) = protocol::write(writer, &message).await {
                return error;
            }
        }
    }
}

/// Says when the machine is to be empty, and asks to leave when it may; returns what keeps it from knowing.
async fn wish(
    term: &mut Term,
    occupancy: &Occupancy,
    mut drained: watch::Receiver<bool>,
    answers: UnboundedSender<FromNode>,
) -> io::Error {
    let mut look = interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_drained = false;
    loop {
        tokio::select! {
            _ = drained.wait_for(|drained| *drained), if !is_drained => {
                is_drained = true;
                term.drain(Instant::now());
                info!("this machine is to be empty: what runs here goes elsewhere");
                term.ending(Instant::now()).map(FromNode::Ends).into_iter().for_each(|it| answer(&answers, it));
            }
            _ = look.tick() => match occupancy.is_idle() {
                Ok(is_idle) => term.wish(is_idle, Instant::now()).into_iter().for_each(|it| answer(&answers, it)),
                Err(error) => return error,
            },
        }
    }
}

/// Says nothing but that it is there, until that cannot be written.
async fn keep_alive(writer: &mut (impl AsyncWrite + Unpin)) -> io::Error {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        if let Err(error) = protocol::write(writer, &FromNode::Alive).await {
            return error;
        }
    }
}

/// An end of the stream has no words of its own.
fn said(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "the scheduler has ended the connection".to_owned(),
        _ => error.to_string(),
    }
}
