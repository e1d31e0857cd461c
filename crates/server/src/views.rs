//! What is known, in the words of the REST interface.

use std::collections::BTreeMap;

use pollux_agent::AgentReport;
use pollux_api as api;
use pollux_engine::{FailureCause, FailureReason, JobState, work_done};
use pollux_job::Phase;
use pollux_model::GpuTypeName;
use pollux_policy::NodeId;
use pollux_store::{HistoryEntry, HistoryLine, JobRow, UnreadableEvent};

use crate::Cluster;
use crate::history_event::Sentence;

/// A live job.
pub fn job(cluster: &Cluster<'_>, job: &pollux_engine::Job) -> api::Job {
    let usage = job.usage(cluster.now());
    let (pace, report) = (job.pace(), job.report().map(|received| &received.report));
    let share = cluster.equal_share();
    api::Job {
        id: job.id().0,
        name: job.spec().name.clone(),
        owner: job.spec().owner.clone(),
        phase: job.phase(),
        phase_since_ms: job.phase_since().0,
        submitted_ms: usage.submitted.0,
        started_ms: usage.first_started.map(|at| at.0),
        ended_ms: usage.ended.map(|at| at.0),
        replicas: job.group().replicas(),
        gpus_per_replica: job.per_replica().gpus,
        nodes: u32::try_from(job.group().iter().len()).unwrap_or(u32::MAX),
        batch_size: pace.map(|pace| pace.batch_size),
        learning_rate_factor: pace.and(report).map(|report| report.learning_rate_factor),
        samples_per_s: pace.and_then(|pace| pace.samples_per_s),
        efficiency: pace.map(|pace| pace.efficiency),
        goodput: pace.and_then(|pace| pace.goodput()),
        speedup: share.and_then(|share| share.speedup(job)),
        unfairness: share.and_then(|share| share.finish_time_ratio(job, cluster.now())),
        epochs: report.map(|report| report.progress.epochs),
        progress: report.and_then(|report| work_done(job.spec().work?, report)),
        remaining_s: job.remaining_s(),
        attained_gpu_s: usage.attained_gpu_s(),
        queued_s: usage.queued_s(),
        restarts: usage.restarts,
        retries: usage.retries,
        failure: failure(job.state(), |node| cluster.node_name(node).to_owned()),
    }
}

/// A live job, with everything that is known of it.
pub fn job_detail(cluster: &Cluster<'_>, job: &pollux_engine::Job) -> Option<api::JobDetail> {
    let assignment = cluster.assignment(job.id());
    let report = job.report();
    let learned = Learned::of(report.map(|received| &received.report));
    Some(api::JobDetail {
        job: self::job(cluster, job),
        spec: cluster.spec(job.id())?.without_secrets(),
        generation: assignment.as_ref().map_or(0, |assignment| assignment.generation),
        group: assignment.map(|assignment| assignment.replicas).unwrap_or_default(),
        replicas_logged: cluster.replicas(job.id()).into_iter().map(|replica| replica.0).collect(),
        local_batch: learned.local_batch,
        accumulation_steps: learned.accumulation_steps,
        noise_scale: learned.noise_scale,
        replicas_profiled: learned.replicas_profiled,
        restart_cost_s: job.usage(cluster.now()).restart_cost_s,
        reported_ms: report.map(|received| received.at.0),
        is_silent: job.is_silent(),
        checkpoint_dir: cluster.checkpoint_dir(job.id()),
    })
}

/// A job as its row tells, live or over.
pub fn job_of_row(row: &JobRow) -> api::Job {
    let spec = &row.submitted.spec;
    let (id, submitted) = (row.submitted.id.0, row.submitted.submitted.0);
    let mut job = api::Job {
        id,
        name: spec.name.clone(),
        owner: spec.owner.clone(),
        phase: Phase::Queued,
        phase_since_ms: submitted,
        submitted_ms: submitted,
        started_ms: None,
        ended_ms: None,
        replicas: 0,
        gpus_per_replica: spec.gpus_per_replica.max(1),
        nodes: 0,
        batch_size: None,
        learning_rate_factor: None,
        samples_per_s: None,
        efficiency: None,
        goodput: None,
        speedup: None,
        unfairness: None,
        epochs: None,
        progress: None,
        remaining_s: None,
        attained_gpu_s: 0.0,
        queued_s: 0.0,
        restarts: 0,
        retries: 0,
        failure: None,
    };
    if let Some(ended) = &row.ended {
        let summary = &ended.summary;
        let (usage, report) = (summary.usage, summary.report.as_ref().map(|received| &received.report));
        job.phase = summary.state.phase();
        job.phase_since_ms = ended.ended.0;
        job.ended_ms = Some(ended.ended.0);
        job.started_ms = usage.first_started.map(|at| at.0);
        job.epochs = report.map(|report| report.progress.epochs);
        let reported = report.and_then(|report| work_done(spec.work?, report));
        // The last words of a job that trained to its end came a little before that.
        job.progress = if summary.state == JobState::Succeeded { spec.work.map(|_| 1.0) } else { reported };
        job.attained_gpu_s = usage.attained_gpu_s();
        job.queued_s = usage.queued_s();
        (job.restarts, job.retries) = (usage.restarts, usage.retries);
        job.failure = summary.failure.clone();
    }
    job
}

/// A job that is over, with everything that is known of it.
pub fn detail_of_row(row: &JobRow, checkpoint_dir: String) -> api::JobDetail {
    let job = job_of_row(row);
    let summary = row.ended.as_ref().map(|ended| &ended.summary);
    let report = summary.and_then(|summary| summary.report.as_ref());
    let learned = Learned::of(report.map(|received| &received.report));
    api::JobDetail {
        checkpoint_dir,
        job,
        spec: row.submitted.spec.without_secrets(),
        generation: 0,
        group: Vec::new(),
        replicas_logged: summary.map(|summary| summary.replicas.clone()).unwrap_or_default(),
        local_batch: learned.local_batch,
        accumulation_steps: learned.accumulation_steps,
        noise_scale: learned.noise_scale,
        replicas_profiled: learned.replicas_profiled,
        restart_cost_s: summary.and_then(|summary| summary.usage.restart_cost_s),
        reported_ms: report.map(|received| received.at.0),
        is_silent: false,
    }
}

/// The cluster as a whole.
pub fn cluster_status(cluster: &Cluster<'_>, policy: &str) -> api::ClusterStatus {
    let engine = cluster.engine();
    let mut jobs: BTreeMap<Phase, u64> = BTreeMap::new();
    for job in engine.jobs() {
        *jobs.entry(job.phase()).or_default() += 1;
    }
    api::ClusterStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        policy: policy.to_owned(),
        now_ms: cluster.now().0,
        gpus: engine.nodes().map(pollux_engine::Node::gpus).sum(),
        gpus_held: engine.nodes().map(pollux_engine::Node::gpus_held).sum(),
        jobs,
        goodput: engine.goodput(),
        last_event: cluster.last_event(),
        last_round_ms: engine.last_round().map(|at| at.0),
        next_round_ms: engine.next_round().map(|at| at.0),
        is_degraded: cluster.is_degraded(),
    }
}

/// Nodes that are used or still have replicas, and those that wait to be used, in order of their names.
pub fn nodes(cluster: &Cluster<'_>) -> api::NodeList {
    let engine = cluster.engine();
    let mut jobs: BTreeMap<NodeId, Vec<api::NodeJob>> = BTreeMap::new();
    for job in engine.jobs() {
        for (node, replicas) in job.group().iter() {
            let (id, name, is_guest) = (job.id().0, job.spec().name.clone(), job.guest_of().is_some());
            let gpus_per_replica = job.per_replica().gpus;
            let on_node = api::NodeJob { id, name, replicas, gpus_per_replica, is_guest };
            jobs.entry(node).or_default().push(on_node);
        }
    }
    let mut nodes: Vec<api::Node> = engine
        .nodes()
        .map(|node| api::Node {
            name: cluster.node_name(node.id()).to_owned(),
            gpus: node.gpus(),
            gpu_type: cluster.gpu_type_name(node.gpu_type()).to_owned(),
            gpus_held: node.gpus_held(),
            cpus: node.cpus(),
            cpus_held: node.cpus_held(),
            memory: node.memory(),
            memory_held: node.memory_held(),
            is_draining: node.is_draining(),
            drains_at_ms: node.end().map(|end| end.drains_at.0),
            ends_at_ms: node.end().and_then(|end| end.ends_at).map(|at| at.0),
            is_unreachable: node.is_unreachable(),
            is_retired: node.is_retired(),
            cooling_until_ms: node.cooling_until().filter(|until| *until > cluster.now()).map(|until| until.0),
            jobs: jobs.remove(&node.id()).unwrap_or_default(),
            agent: None,
        })
        .collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let held_back = cluster.registry.held_back().map(|(node, reason)| api::HeldBackNode {
        name: node.name.clone(),
        gpus: node.gpus,
        gpu_type: GpuTypeName::nearest(&node.gpu_type).to_string(),
        reason: reason.to_owned(),
    });
    api::NodeList { nodes, held_back: held_back.collect() }
}

/// Something that happened.
pub fn event(entry: &HistoryEntry) -> api::Event {
    told(entry, &crate::text(&entry.event), Sentence(&entry.event).to_string())
}

/// A line of history. One that cannot be read, such as a later version's, is shown as such.
pub fn line(line: &HistoryLine) -> api::Event {
    match &line.event {
        Ok(event) => told(line, &crate::text(event), Sentence(event).to_string()),
        Err(UnreadableEvent { text, reason }) => told(line, text, format!("this cannot be read: {reason}")),
    }
}

fn told<E>(entry: &HistoryEntry<E>, written: &str, text: String) -> api::Event {
    let mut detail: serde_json::Map<_, _> = serde_json::from_str(written).unwrap_or_default();
    let kind = detail.remove("happened").and_then(|kind| kind.as_str().map(str::to_owned));
    api::Event {
        sequence: entry.sequence,
        at_ms: entry.at.0,
        job: entry.job.map(|job| job.0),
        kind: kind.unwrap_or_else(|| "unreadable".to_owned()),
        text,
        detail: serde_json::Value::Object(detail),
    }
}

/// What an agent has told of its training.
#[derive(Default)]
struct Learned {
    local_batch: Option<u32>,
    accumulation_steps: Option<u32>,
    noise_scale: Option<f64>,
    replicas_profiled: Option<u32>,
}

impl Learned {
    fn of(report: Option<&AgentReport>) -> Self {
        let Some(report) = report else { return Self::default() };
        Self {
            local_batch: report.tuning.map(|tuning| tuning.local_batch),
            accumulation_steps: report.tuning.map(|tuning| tuning.accumulation_steps),
            noise_scale: noise_scale(report),
            replicas_profiled: report.types.iter().map(|learned| learned.replicas_profiled).max(),
        }
    }
}

/// Noise scale of the gradients that an agent told of.
pub(crate) fn noise_scale(report: &AgentReport) -> Option<f64> {
    report.noise?.noise_scale(report.limits.batch_size_baseline())
}

/// Why a job was given up, `name` telling what a node is called.
pub(crate) fn failure(state: &JobState, name: impl Fn(NodeId) -> String) -> Option<String> {
    let JobState::Failed { reason } = state else { return None };
    let (cause, retries) = match *reason {
        FailureReason::Permanent { cause } => (cause, None),
        FailureReason::RetriesExhausted { retries, cause } => (cause, Some(retries)),
        FailureReason::MachineFailures { failures, cause } => (cause, Some(failures.saturating_sub(1))),
        FailureReason::TimeLimit { limit_s } => return Some(format!("reached its time limit of {limit_s} s")),
        FailureReason::Dependency { job } => return Some(format!("depends on {job}, which did not succeed")),
    };
    let what = match cause {
        FailureCause::Replica { node } => format!("a replica failed on {}", name(node)),
        FailureCause::Launch { node } => format!("a replica could not be started on {}", name(node)),
        FailureCause::Timeout => "its replicas did not train in time".to_owned(),
    };
    Some(match retries {
        None | Some(0) => what,
        Some(1) => format!("{what}, after 1 retry"),
        Some(retries) => format!("{what}, after {retries} retries"),
    })
}
