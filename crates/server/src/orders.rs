//! What workers are told: who belongs to their group, and what they find in their environment.

use std::collections::BTreeMap;
use std::path::Path;

use pollux_api::{AssignedReplica, Assignment, AssignmentState, Endpoint, Rendezvous};
use pollux_backend::{Epoch, ReplicaId, ReplicaOrder};
use pollux_engine::Job;
use pollux_job::{JobId, JobSpec};
use pollux_model::BatchMode;
use pollux_policy::NodeId;

use crate::ServerSettings;
use crate::fleet::{Fleet, Group, Replica};
use crate::node_registry::NodeRegistry;

/// Ports for programs that cannot tell where they wait: so many from here on. Systems give others to those who ask for any.
const PORTS: (u64, u64) = (20_000, 10_000);

/// Who chooses the batch of a job: the policy, by what it does in simulations, too.
pub(crate) fn batch_mode(settings: &ServerSettings, job: Option<&Job>) -> BatchMode {
    BatchMode::of(settings.policy.adapts_batches(), job.and_then(|job| job.spec().batch_size))
}

/// Where rank 0 of a program waits that reads `MASTER_PORT`. Jobs and generations that follow each other have different
/// ones.
fn port(job: JobId, generation: u64) -> u16 {
    let (first, count) = PORTS;
    let place = job.0.wrapping_mul(16).wrapping_add(generation) % count;
    u16::try_from(first + place).unwrap_or(u16::MAX)
}

/// The newest membership of a group. One that stops has no members any more.
pub(crate) fn assignment(
    job: JobId,
    group: &Group,
    fleet: &Fleet,
    registry: &NodeRegistry,
    batch: BatchMode,
) -> Assignment {
    let node_of = |id: &ReplicaId| fleet.replica(*id).map(|replica| replica.node).unwrap_or_default();
    let mut sizes: BTreeMap<NodeId, u32> = BTreeMap::new();
    for id in &group.members {
        *sizes.entry(node_of(id)).or_default() += 1;
    }
    let mut local_ranks: BTreeMap<NodeId, u32> = BTreeMap::new();
    let replicas = group.members.iter().zip(0..).map(|(id, rank)| {
        let node = node_of(id);
        let next = local_ranks.entry(node).or_default();
        let local_rank = *next;
        *next += 1;
        let (local_world_size, gpu_type) = (sizes[&node], registry.gpu_type(node));
        let node = registry.name(node).to_owned();
        AssignedReplica { replica: id.0, rank, node, local_rank, local_world_size, gpu_type }
    });
    let leader = group.members.first().map(node_of).unwrap_or_default();
    let published = group.rendezvous.clone();
    let unpublished = || (registry.address(leader).to_owned(), port(job, group.generation));
    let (master_address, master_port) = published.clone().unwrap_or_else(unpublished);
    let at = |(address, port)| Rendezvous::At(Endpoint { address, port });
    Assignment {
        generation: group.generation,
        epoch: None,
        state: if group.stopping { AssignmentState::Stop } else { AssignmentState::Run },
        replicas: replicas.collect(),
        rendezvous: published.map_or(Rendezvous::Awaited, at),
        master_address,
        master_port,
        batch,
        shares_gpus: fleet.shares_gpus(group),
        key: None,
    }
}

/// What does not depend on the replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchContext<'a> {
    pub(crate) epoch: Epoch,
    pub(crate) url: &'a str,
    /// Who vouches for that address.
    pub(crate) authority: Option<&'a Path>,
    /// The host under which the replica is reached.
    pub(crate) address: &'a str,
    pub(crate) checkpoint_dir: &'a str,
    /// Whether nobody else has the state of the job.
    pub(crate) restores: bool,
    pub(crate) token: WorkerToken<'a>,
}

/// What lets workers speak for their job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkerToken<'a> {
    /// One of ours.
    Ours(&'a str),
    /// A file in which each finds its own.
    File(&'a Path),
}

/// The order for a member of a group, and of a bundle if it does not come alone.
pub(crate) fn order(
    id: ReplicaId,
    replica: &Replica,
    bundle: Vec<ReplicaId>,
    spec: &JobSpec,
    assignment: &Assignment,
    context: LaunchContext<'_>,
) -> Option<ReplicaOrder> {
    let place = assignment.replicas.iter().find(|assigned| assigned.replica == id.0)?;
    let variables = [
        ("RANK", place.rank.to_string()),
        ("WORLD_SIZE", assignment.replicas.len().to_string()),
        ("LOCAL_RANK", place.local_rank.to_string()),
        ("LOCAL_WORLD_SIZE", place.local_world_size.to_string()),
        ("MASTER_ADDR", assignment.master_address.clone()),
        ("MASTER_PORT", assignment.master_port.to_string()),
        ("POLLUX_URL", context.url.to_owned()),
        ("POLLUX_HOST_ADDRESS", context.address.to_owned()),
        ("POLLUX_JOB_ID", replica.job.0.to_string()),
        ("POLLUX_REPLICA_ID", id.0.to_string()),
        ("POLLUX_GENERATION", assignment.generation.to_string()),
        ("POLLUX_CHECKPOINT_DIR", context.checkpoint_dir.to_owned()),
    ];
    let mut environment = spec.env.clone();
    environment.extend(variables.map(|(name, value)| (name.to_owned(), value)));
    let authority = context.authority.map(|file| file.to_string_lossy().into_owned());
    environment.extend(authority.map(|file| ("POLLUX_CA_FILE".to_owned(), file)));
    let mut secrets: BTreeMap<String, String> =
        spec.secrets.iter().map(|(name, value)| (name.clone(), value.reveal().to_owned())).collect();
    match context.token {
        WorkerToken::Ours(token) => drop(secrets.insert("POLLUX_TOKEN".to_owned(), token.to_owned())),
        WorkerToken::File(file) => {
            environment.insert("POLLUX_TOKEN_FILE".to_owned(), file.to_string_lossy().into_owned());
        }
    }
    Some(ReplicaOrder {
        epoch: context.epoch,
        replica: id,
        job: replica.job,
        node: place.node.clone(),
        gpus: spec.gpus_per_replica,
        cpus: spec.cpus,
        memory: spec.memory,
        shares_with: replica.shares_with,
        bundle: if bundle.len() > 1 { bundle } else { Vec::new() },
        command: spec.command.clone(),
        working_dir: spec.working_dir.clone(),
        checkpoint_dir: context.checkpoint_dir.to_owned(),
        restores: context.restores,
        environment,
        secrets,
    })
}
