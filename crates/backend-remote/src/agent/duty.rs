//! What an agent does while it is connected.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use pollux_backend::{Backend, Observation, ReplicaId, ReplicaOrder};
use pollux_backend_local::{LocalBackend, Occupancy};
use tokio::io::{AsyncWrite, ReadHalf};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use super::connection::Stream;
use super::term::Term;
use super::{Agent, AgentError, Ended};
use crate::protocol::{
    self, FromNode, GREETING_MAX, HEARTBEAT, Hello, Leave, PROTOCOL, SILENCE_MAX, SharedFolder, ToNode,
};

/// How often an agent looks whether anything runs.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// What is read of a log at once, whatever was asked for.
const PIECE_BYTES_MAX: u64 = 1 << 20;

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
        let folder = match timeout(GREETING_MAX, greeted).await {
            Err(_) => return Ok(Ended::Broken("the scheduler does not answer a greeting".to_owned())),
            Ok(Err(error)) => return Ok(Ended::Broken(said(&error))),
            Ok(Ok(Err((reason, None)))) => return Ok(Ended::Refused(reason)),
            Ok(Ok(Err((reason, Some(leave))))) => {
                self.end_all(leave).await?;
                return Ok(Ended::Left(reason));
            }
            Ok(Ok(Ok((folder, cluster, version)))) => {
                info!(scheduler = version, "connected");
                self.identity.has_joined(cluster)?;
                folder
            }
        };
        welcomed();
        let duty = Duty { folder, replicas: replicas.into_iter().collect() };
        let ended = self.on_duty(duty, reader, &mut writer).await?;
        match ended {
            Done::Broken(error) => Ok(Ended::Broken(said(&error))),
            Done::Leaves(leave) => {
                tokio::select! {
                    ended = self.end_all(leave) => ended?,
                    // It comes back, and is told again to leave.
                    error = keep_alive(&mut writer) => return Ok(Ended::Broken(said(&error))),
                }
                let left = timeout(GREETING_MAX, protocol::write(&mut writer, &FromNode::Left)).await;
                match left {
                    Ok(Ok(())) => Ok(Ended::Left(format!("{} was removed from the cluster", self.settings.name))),
                    Ok(Err(error)) => Ok(Ended::Broken(said(&error))),
                    Err(_) => Ok(Ended::Broken("the scheduler does not listen".to_owned())),
                }
            }
        }
    }

    async fn on_duty(
        &mut self,
        mut duty: Duty,
        mut reader: ReadHalf<Stream>,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Done, AgentError> {
        let (answers, answered) = mpsc::unbounded_channel();
        let occupancy = self.local.occupancy();
        let Self { local, identity, seen, term, drained, .. } = self;
        let wishes = wish(term, &occupancy, drained.subscribe(), answers.clone());
        let orders = async {
            loop {
                let message = match timeout(SILENCE_MAX, protocol::read(&mut reader)).await {
                    Ok(Ok(message)) => message,
                    Ok(Err(error)) => return Ok(Done::Broken(error)),
                    Err(_) => return Ok(Done::Broken(io::Error::new(ErrorKind::TimedOut, "nothing heard"))),
                };
                match message {
                    Some(ToNode::Leave(leave)) => return Ok(Done::Leaves(leave)),
                    Some(ToNode::Alive { certificate: Some(pin) }) => identity.trust(&pin)?,
                    Some(order) => duty.carry_out(local, order, &answers),
                    None => {}
                }
            }
        };
        tokio::select! {
            done = orders => done,
            error = send(writer, seen, answered) => Ok(Done::Broken(error)),
            error = wishes => Ok(Done::Broken(error)),
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
    folder: Option<SharedFolder>,
    /// Replicas that have a folder here.
    replicas: BTreeSet<ReplicaId>,
}

impl Duty {
    fn carry_out(&mut self, local: &mut LocalBackend, order: ToNode, answers: &UnboundedSender<FromNode>) {
        match order {
            ToNode::Adopt { epoch, replicas } => local.adopt(epoch, &replicas),
            ToNode::Start { order, secrets } => {
                let order = ReplicaOrder { secrets, ..*order };
                let (replica, is_new) = (order.replica, !self.replicas.contains(&order.replica));
                // What was started before is not judged again.
                if let Some(reason) = self.folder.as_ref().filter(|_| is_new).and_then(|it| unseen(it, &order)) {
                    warn!(replica = replica.0, reason, "a replica is not started");
                    answer(answers, FromNode::StartFailed { replica, reason, retryable: true });
                    return;
                }
                self.replicas.insert(replica);
                local.start(&order);
            }
            ToNode::Stop { epoch, replica, grace_ms } => local.stop(epoch, replica, Duration::from_millis(grace_ms)),
            ToNode::Forget { epoch, replica } => local.forget(epoch, replica),
            ToNode::KeepOnly { epoch, replicas } => local.keep_only(epoch, &replicas),
            ToNode::ReadLog { request, replica, from, bytes_max } => {
                let answers = answers.clone();
                let bytes_max = bytes_max.min(PIECE_BYTES_MAX) as usize;
                let told = move |read: io::Result<_>| answer(&answers, FromNode::Log { request, piece: read.into() });
                local.logs().read(replica, from.into(), bytes_max, Box::new(told));
            }
            // Said at other times, or by a later version.
            ToNode::Welcome { .. }
            | ToNode::Refused { .. }
            | ToNode::Leave(_)
            | ToNode::Alive { .. }
            | ToNode::Unknown => {}
        }
    }
}

fn answer(answers: &UnboundedSender<FromNode>, message: FromNode) {
    #[expect(clippy::let_underscore_must_use, reason = "whoever asked over a connection that is over asks again")]
    let _ = answers.send(message);
}

/// Why a job could not find here what it saves elsewhere.
fn unseen(folder: &SharedFolder, order: &ReplicaOrder) -> Option<String> {
    let path = &folder.path;
    if !Path::new(&order.checkpoint_dir).starts_with(path) {
        return None;
    }
    let mark = fs::read_to_string(Path::new(path).join(SharedFolder::MARK));
    let is_seen =
        mark.as_deref().is_ok_and(|text| serde_json::from_str(text).is_ok_and(|mark: String| mark == folder.mark));
    (!is_seen).then(|| {
        let node = &order.node;
        format!("{path}: {node} does not see the scheduler's checkpoints there; share that folder, or --checkpoint-dir")
    })
}

/// Sends what is seen and answered until that cannot be written.
async fn send(
    writer: &mut (impl AsyncWrite + Unpin),
    seen: &mut UnboundedReceiver<Observation>,
    mut answered: UnboundedReceiver<FromNode>,
) -> io::Error {
    let mut heartbeat = interval(HEARTBEAT);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            Some(seen) = seen.recv() => seen.into(),
            Some(answer) = answered.recv() => answer,
            _ = heartbeat.tick() => FromNode::Alive,
        };
        if let Err(error) = protocol::write(writer, &message).await {
            return error;
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
