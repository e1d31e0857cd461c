use std::collections::BTreeMap;
use std::path::PathBuf;

use pollux_engine::Revision;
use serde::Deserialize;

use super::{GpuTypes, ReceivedReport, Spec};
use crate::{GroupRow, NodeRow, v2};

/// A job as its user asked for it.
#[derive(Debug, Deserialize)]
pub(crate) struct Request {
    spec: Spec,
    command: Vec<String>,
    working_dir: PathBuf,
    environment: BTreeMap<String, String>,
}

/// What became of a job that is over.
#[derive(Debug, Deserialize)]
pub(crate) struct Summary {
    phase: v2::Phase,
    #[serde(default)]
    failure: Option<String>,
    books: v2::Usage,
    report: Option<ReceivedReport>,
    replicas: Vec<u64>,
}

/// The replicas of a job that train together. The engine's revision was called a generation, and a generation a number.
#[derive(Debug, Deserialize)]
pub(crate) struct Group {
    number: u64,
    generation: u64,
    heard: (u64, u64),
    members: Vec<u64>,
    meeting: (String, u16),
    awaits_additions: bool,
    shrunk: bool,
    stopping: bool,
    #[serde(default)]
    last_leader: Option<u64>,
    past: Vec<u64>,
}

/// What is kept of a node. Its GPUs were called whatever their driver calls them.
#[derive(Debug, Deserialize)]
pub(crate) struct Node {
    name: String,
    gpu_type: String,
    gpus: u32,
}

impl From<Request> for v2::Spec {
    fn from(request: Request) -> Self {
        let Request { spec, command, working_dir, environment: env } = request;
        Self { command, working_dir, env, ..spec.into() }
    }
}

impl Summary {
    pub(crate) fn named(self, types: &GpuTypes) -> v2::Summary {
        v2::Summary {
            phase: self.phase,
            failure: self.failure,
            usage: self.books,
            report: self.report.map(|report| report.named(types)),
            replicas: self.replicas,
        }
    }
}

impl From<Group> for GroupRow {
    fn from(group: Group) -> Self {
        let (heard, heard_revision) = group.heard;
        Self {
            generation: group.number,
            revision: Revision(group.generation),
            heard: (heard, Revision(heard_revision)),
            members: group.members,
            rendezvous: Some(group.meeting),
            awaits_additions: group.awaits_additions,
            shrunk: group.shrunk,
            stopping: group.stopping,
            last_leader: group.last_leader,
            past: group.past,
        }
    }
}

impl From<Node> for NodeRow {
    fn from(node: Node) -> Self {
        Self { name: node.name, gpu_type: node.gpu_type, gpus: node.gpus, address: String::new() }
    }
}
