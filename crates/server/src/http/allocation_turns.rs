//! Queues of allocations have their turns here, beside the scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pollux_backend_remote::Nodes;
use pollux_slurm::{Machine, MachineNode, Orders, Place, Queues, Turn};
use tokio::sync::Notify;
use tracing::{error, warn};

use super::AllocationSettings;
use super::failure::HttpError;
use super::state::AppState;
use crate::demand::Snapshot;
use crate::{NodeAction, Refused};

/// How often it is looked whether a turn is due.
const LOOKS: Duration = Duration::from_secs(1);
/// A token lets machines join for so long, and is replaced after a part of that: an allocation that waits reads the newest.
const TOKEN_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3_600);
const TOKEN_RENEWAL_MS: u64 = 24 * 3_600 * 1_000;

/// The queues, and what agents are told.
#[derive(Clone, Debug)]
pub(crate) struct Allocations {
    pub(crate) queues: Queues,
    pub(crate) interval: Duration,
    /// The token of this process, and since when there is one.
    token: Arc<Mutex<Option<(String, u64)>>>,
    /// Somebody has changed something.
    pub(crate) changed: Arc<Notify>,
}

impl Allocations {
    pub(crate) fn new(settings: &AllocationSettings) -> Self {
        let AllocationSettings { queues, interval } = settings.clone();
        Self { queues, interval, token: Arc::default(), changed: Arc::default() }
    }

    /// What agents of allocations are told. It waits for the disk.
    pub(crate) fn place(&self, state: &AppState, nodes: &Nodes) -> Result<Place, HttpError> {
        let mut token = self.token.lock().expect("nobody panics with it");
        let now = now_ms();
        let newest = match token.take().filter(|(_, since)| now.saturating_sub(*since) < TOKEN_RENEWAL_MS) {
            Some(newest) => newest,
            None => (nodes.issue_token(TOKEN_LIFETIME)?.0, now),
        };
        let text = match state.fingerprint() {
            Some(fingerprint) => format!("{}.{fingerprint}", newest.0),
            None => newest.0.clone(),
        };
        *token = Some(newest);
        Ok(Place { url: state.worker_url().to_owned(), token: text })
    }
}

pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Has the turns that are due, until the server ends.
pub(crate) async fn take_turns(state: AppState) -> std::io::Result<()> {
    let Some(allocations) = state.allocations.clone() else { return Ok(()) };
    let mut told = BTreeSet::new();
    loop {
        let is_changed = tokio::select! {
            () = tokio::time::sleep(LOOKS) => false,
            () = allocations.changed.notified() => true,
            () = state.closed() => return Ok(()),
        };
        if !is_changed && !allocations.queues.is_due(now_ms()) {
            continue;
        }
        match turn(&state, &allocations, &mut told).await {
            Ok(()) | Err(HttpError::Refused(Refused::Away)) => {}
            Err(error) => error!(%error, "queues of allocations have missed a turn"),
        }
    }
}

async fn turn(state: &AppState, allocations: &Allocations, told: &mut BTreeSet<String>) -> Result<(), HttpError> {
    let nodes = state.nodes.clone().ok_or(HttpError::NoNodes)?;
    let snapshot = state.handle.look(Snapshot::of).get().await?;
    let (shared, allocations, interval) = (state.clone(), allocations.clone(), allocations.interval);
    let seen = std::mem::take(told);
    let done = tokio::task::spawn_blocking(move || {
        let machines = machines(&nodes, snapshot.nodes());
        let place = allocations.place(&shared, &nodes)?;
        let turn = Turn { now_ms: now_ms(), interval, place: &place, machines: &machines, grace: shared.grace };
        let demand = snapshot.demand();
        let Orders { leave, drain } = allocations.queues.turn(&turn, |queue| demand.of(queue))?;
        let is_connected = |name: &String| machines.iter().any(|it| it.name == *name && it.is_connected);
        // One that is connected is told once, and leaves when nothing runs there any more.
        for machine in leave.iter().filter(|it| !seen.contains(*it)) {
            if let Err(failure) = nodes.remove(machine, shared.grace) {
                warn!(machine, %failure, "a machine whose allocation ends is not removed");
            }
        }
        Ok::<_, HttpError>((leave.into_iter().filter(is_connected).collect(), drain))
    });
    let (leaving, drain) = done.await.map_err(|_| Refused::Broken)??;
    *told = leaving;
    for node in drain {
        match state.handle.act_on_node(&node, NodeAction::Drain).get().await {
            // It has gone in the meantime.
            Ok(()) | Err(Refused::UnknownNode { .. }) => {}
            Err(refused) => return Err(refused.into()),
        }
    }
    Ok(())
}

/// All machines that have joined, and their nodes.
pub(crate) fn machines(nodes: &Nodes, known: &BTreeMap<String, MachineNode>) -> Vec<Machine> {
    let machine = |view: pollux_backend_remote::MachineView| Machine {
        nodes: view.nodes.iter().filter_map(|node| known.get(node)).cloned().collect(),
        name: view.name,
        is_connected: view.is_connected,
    };
    nodes.machines().into_iter().map(machine).collect()
}
