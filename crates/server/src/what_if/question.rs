use std::collections::{BTreeMap, BTreeSet};

use pollux_agent::AgentReport;
use pollux_api as api;
use pollux_engine::{Job, Refusal};
use pollux_job::{JobId, JobSpec, Phase};
use pollux_model::GpuTypeName;
use pollux_policy::{PolicySettings, Timestamp};
use pollux_sim::{Change, LiveCluster, Newcomer, Training};
use pollux_store::JobRow;

use super::WhatIfError;
use crate::{Cluster, Refused};

const CHANGES_MAX: usize = 64;
/// Nodes that may be added at once, and GPUs of each.
const NODES_MAX: u32 = 1_024;

/// A cluster and what would be changed, for the simulator.
pub(crate) struct Question {
    pub(super) cluster: LiveCluster,
    pub(super) changes: Vec<Change>,
    pub(super) jobs: Vec<ListedJob>,
}

/// A job as the answer lists it.
pub(super) struct ListedJob {
    pub(super) id: Option<u64>,
    pub(super) name: String,
    pub(super) phase: Option<Phase>,
    pub(super) replicas: u32,
    pub(super) gpus_per_replica: u32,
}

/// What another job has told of its training.
pub(crate) struct JobTemplate {
    spec: JobSpec,
    report: AgentReport,
    restart_cost_s: Option<f64>,
}

impl JobTemplate {
    /// Of a live job; nothing if it has told nothing.
    pub(crate) fn of_live(job: &Job, now: Timestamp) -> Option<Self> {
        let report = job.report()?.report.clone();
        Some(Self { spec: job.spec().clone(), report, restart_cost_s: job.usage(now).restart_cost_s })
    }

    /// Of a job that is over; nothing if it has told nothing.
    pub(crate) fn of_row(row: &JobRow) -> Option<Self> {
        let summary = &row.ended.as_ref()?.summary;
        let (spec, report) = (row.submitted.spec.clone(), summary.report.as_ref()?.report.clone());
        Some(Self { spec, report, restart_cost_s: summary.usage.restart_cost_s })
    }
}

/// What is asked of a cluster, with what is known of the jobs that others would train like.
pub(crate) fn question(
    cluster: &Cluster<'_>,
    asked: &[api::Change],
    templates: &BTreeMap<u64, JobTemplate>,
) -> Result<Question, Refused> {
    if asked.len() > CHANGES_MAX {
        return Err(WhatIfError::TooMany { changes: asked.len(), limit: CHANGES_MAX }.into());
    }
    let engine = cluster.engine();
    let live = engine.jobs().filter(|job| !job.phase().is_ended());
    let mut jobs: Vec<ListedJob> = live
        .map(|job| ListedJob {
            id: Some(job.id().0),
            name: job.spec().name.clone(),
            phase: Some(job.phase()),
            replicas: job.group().replicas(),
            gpus_per_replica: job.per_replica().gpus,
        })
        .collect();
    let mut changes = Vec::new();
    for change in asked {
        let change = self::change(cluster, change, templates)?;
        if let Change::Submit(newcomer) = &change {
            let (name, gpus_per_replica) = (newcomer.spec.name.clone(), newcomer.spec.gpus_per_replica.max(1));
            jobs.push(ListedJob { id: None, name, phase: None, replicas: 0, gpus_per_replica });
        }
        changes.push(change);
    }
    let settings = cluster.settings();
    let (settings, policy) = (settings.engine, settings.policy.clone());
    let cluster = LiveCluster { now: cluster.now(), state: engine.state(), settings, policy };
    Ok(Question { cluster, changes, jobs })
}

fn change(
    cluster: &Cluster<'_>,
    asked: &api::Change,
    templates: &BTreeMap<u64, JobTemplate>,
) -> Result<Change, Refused> {
    Ok(match asked {
        api::Change::Submit(job) => {
            let newcomer = newcomer(job, templates)?;
            cluster.engine().admit(&newcomer.spec)?;
            Change::Submit(Box::new(newcomer))
        }
        api::Change::AddNodes { count, gpus, gpu_type } => {
            let (count, gpus) = (*count, *gpus);
            if ![count, gpus].iter().all(|number| (1..=NODES_MAX).contains(number)) {
                return Err(WhatIfError::Nodes { count, gpus, limit: NODES_MAX }.into());
            }
            Change::AddNodes { count, gpus, gpu_type: self::gpu_type(cluster, gpu_type.as_deref())? }
        }
        api::Change::Drain { node } => {
            let unknown = || Refused::UnknownNode { name: node.clone() };
            Change::Drain(cluster.node_named(node).ok_or_else(unknown)?)
        }
        api::Change::Policy { name } => Change::Policy(PolicySettings::named(name).map_err(WhatIfError::from)?),
        api::Change::Cancel { job } => Change::Cancel(live(cluster, *job)?),
        api::Change::Pause { job } => Change::Pause(live(cluster, *job)?),
        api::Change::Resume { job } => Change::Resume(live(cluster, *job)?),
    })
}

fn live(cluster: &Cluster<'_>, job: u64) -> Result<JobId, Refusal> {
    let (job, engine) = (JobId(job), cluster.engine());
    match engine.job(job) {
        Some(found) if !found.phase().is_ended() => Ok(job),
        None if engine.last_job().is_none_or(|last| job > last) => Err(Refusal::UnknownJob { job }),
        Some(_) | None => Err(Refusal::EndedJob { job }),
    }
}

/// A type of GPU by its name, or that of the first node. Of one that no node has and no live job was measured on nothing
/// could be told but a guess.
fn gpu_type(cluster: &Cluster<'_>, name: Option<&str>) -> Result<GpuTypeName, WhatIfError> {
    let engine = cluster.engine();
    let mut of_nodes = engine.nodes().filter_map(|node| engine.gpu_type_name(node.gpu_type()));
    let Some(name) = name else { return Ok(of_nodes.next().cloned().unwrap_or_default()) };
    let reports = engine.jobs().filter_map(|job| job.report());
    let measured = reports.flat_map(|received| received.report.types.iter().map(|learned| &learned.gpu_type));
    let known: BTreeSet<&GpuTypeName> = of_nodes.chain(measured).collect();
    let found = known.iter().find(|known| known.as_str() == name).map(|&known| known.clone());
    found.ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|known| known.as_str()).collect();
        WhatIfError::GpuType { gpu_type: name.to_owned(), known: names.join(", ") }
    })
}

fn newcomer(asked: &api::HypotheticalJob, templates: &BTreeMap<u64, JobTemplate>) -> Result<Newcomer, WhatIfError> {
    let (like, training) = match &asked.trains_like {
        api::TrainsLike::Job(job) => {
            let JobTemplate { spec, report, restart_cost_s } =
                templates.get(job).ok_or(WhatIfError::Unlike { job: *job })?;
            (spec.clone(), Training::Like { report: report.clone(), restart_cost_s: *restart_cost_s })
        }
        api::TrainsLike::Application(name) => {
            let application = name.parse()?;
            (JobSpec::new(name, 1), Training::Application(application))
        }
    };
    let most = asked.replicas_max.unwrap_or(u32::MAX);
    let replicas_min = asked.replicas_min.unwrap_or_else(|| like.replicas_min.min(most));
    let usual = || like.replicas.max(replicas_min).min(most);
    let replicas = asked.replicas.unwrap_or_else(usual);
    let spec = JobSpec {
        name: asked.name.clone().unwrap_or_else(|| like.name.clone()),
        replicas,
        replicas_min,
        replicas_max: asked.replicas_max.or(like.replicas_max.map(|most| most.max(replicas))),
        gpus_per_replica: asked.gpus_per_replica.unwrap_or(like.gpus_per_replica),
        cpus: asked.cpus.or(like.cpus),
        memory: asked.memory.or(like.memory),
        gpu_types: asked.gpu_types.clone().unwrap_or(like.gpu_types),
        flexibility: asked.flexibility.unwrap_or(like.flexibility),
        batch_size: asked.batch_size.or(like.batch_size),
        priority: asked.priority.unwrap_or(like.priority),
        work: asked.work.or(like.work),
        time_limit: asked.time_limit.or(like.time_limit),
        depends_on: asked.depends_on.clone(),
        ..like
    };
    Ok(Newcomer { spec, training })
}
