use serde::Deserialize;

use super::{GpuTypes, ReceivedReport, Spec};
use crate::v2::{self, Oracle, Phase, Places, Reason, Rounds, Seats, SizeChange, StopReason, SucceededJob, Usage};

/// Everything an engine knew.
#[derive(Debug, Deserialize)]
pub(crate) struct Snapshot {
    now: u64,
    jobs: Vec<Job>,
    last_job: Option<u64>,
    nodes: Nodes,
    rounds: Rounds,
    succeeded: Vec<SucceededJob>,
}

#[derive(Debug, Deserialize)]
struct Nodes {
    nodes: Vec<Node>,
    last: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: u32,
    gpus: u32,
    gpu_type: u16,
    draining: bool,
    cooling_until: Option<u64>,
    held: u32,
    crowding: u32,
    waiting: Vec<u64>,
    failures: Vec<(u64, u64)>,
}

/// A job that is not over. What it has left to do follows from its report.
#[derive(Debug, Deserialize)]
struct Job {
    id: u64,
    spec: Spec,
    phase: Phase,
    phase_since: u64,
    generation: u64,
    generation_heard: u64,
    group: Places,
    target: Places,
    guest_of: Option<u64>,
    guest: Option<u64>,
    leaving: Vec<Leaving>,
    commanded: u64,
    timer: Option<u64>,
    books: Usage,
    #[serde(default)]
    size_change: Option<SizeChange>,
    reason: Option<Reason>,
    report: Option<ReceivedReport>,
    #[serde(default)]
    silent: bool,
    oracle: Option<Oracle>,
}

#[derive(Debug, Deserialize)]
struct Leaving {
    generation: u64,
    allocation: Places,
    why: StopReason,
    seats: Seats,
}

impl Snapshot {
    pub(crate) fn named(self, types: &GpuTypes) -> v2::Snapshot {
        v2::Snapshot {
            now: self.now,
            jobs: self.jobs.into_iter().map(|job| job.named(types)).collect(),
            last_job: self.last_job,
            nodes: self.nodes.nodes.into_iter().map(|node| node.named(types)).collect(),
            last_node: self.nodes.last,
            gpu_types: types.all(),
            type_ratios: Vec::new(),
            applications: Vec::new(),
            rounds: self.rounds,
            succeeded: self.succeeded,
            outcomes: Vec::new(),
            policy: None,
        }
    }
}

impl Node {
    fn named(self, types: &GpuTypes) -> v2::ClusterNode {
        v2::ClusterNode {
            id: self.id,
            gpus: self.gpus,
            gpu_type: types.name(self.gpu_type).unwrap_or_default(),
            cpus: None,
            memory: None,
            draining: self.draining,
            end: None,
            ending: false,
            unreachable: false,
            retired: false,
            cooling_until: self.cooling_until,
            held: self.held,
            crowding: self.crowding,
            cpus_held: 0,
            memory_held: 0,
            waiting: self.waiting,
            failures: self.failures,
        }
    }
}

impl Job {
    fn named(self, types: &GpuTypes) -> v2::Job {
        let leaving = |leaving: Leaving| v2::Leaving {
            revision: leaving.generation,
            allocation: leaving.allocation,
            why: leaving.why,
            seats: leaving.seats,
        };
        v2::Job {
            id: self.id,
            spec: self.spec.into(),
            phase: self.phase,
            phase_since: self.phase_since,
            revision: self.generation,
            revision_heard: self.generation_heard,
            group: self.group,
            target: self.target,
            guest_of: self.guest_of,
            guest: self.guest,
            leaving: self.leaving.into_iter().map(leaving).collect(),
            standing: None,
            commanded: self.commanded,
            pending: false,
            stranded: false,
            machine_failures: 0,
            timer: self.timer,
            deadline: None,
            waits_for: Vec::new(),
            usage: self.books,
            size_change: self.size_change,
            reason: self.reason,
            report: self.report.map(|report| report.named(types)),
            silent: self.silent,
            oracle: self.oracle,
        }
    }
}
