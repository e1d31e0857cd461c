//! What is known, in the words of the REST interface.

use std::collections::BTreeMap;
use std::path::Path;

use pollux_agent::AgentReport;
use pollux_api as api;
use pollux_engine::{FailureCause, FailureReason, JobSpec, Phase, Work, work_done};
use pollux_policy::{Flexibility, NodeId};
use pollux_store::{HistoryEntry, JobRow};

use crate::{Cluster, HistoryEvent, JobRequest, JobSummary};

/// Most replicas of a job that names no limit, unless it asks for more.
const REPLICAS_MAX: u32 = 64;

/// A live job.
pub fn job(cluster: &Cluster<'_>, job: &pollux_engine::Job) -> api::Job {
    let usage = job.usage(cluster.now());
    let (pace, report) = (job.pace(), job.report().map(|received| &received.report));
    let share = cluster.equal_share();
    api::Job {
        id: job.id().0,
        name: job.spec().name.clone(),
        phase: phase(job.phase()),
        phase_since_ms: job.phase_since().0,
        submitted_ms: usage.submitted.0,
        started_ms: usage.first_started.map(|at| at.0),
        ended_ms: usage.ended.map(|at| at.0),
        replicas: job.group().replicas(),
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
        failure: failure(job.phase(), |node| cluster.node_name(node).to_owned()),
    }
}

/// A live job, with everything that is known of it.
pub fn job_detail(cluster: &Cluster<'_>, job: &pollux_engine::Job) -> Option<api::JobDetail> {
    let assignment = cluster.assignment(job.id());
    let report = job.report();
    let learned = Learned::of(report.map(|received| &received.report));
    Some(api::JobDetail {
        job: self::job(cluster, job),
        request: request(cluster.request(job.id())?),
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

/// A job as its row tells, live or over; nothing if the row makes no sense.
pub fn job_of_row(row: &JobRow) -> Option<api::Job> {
    let JobRequest { spec, .. } = serde_json::from_str(&row.submitted.request).ok()?;
    let (id, submitted) = (row.submitted.id.0, row.submitted.submitted.0);
    let mut job = api::Job {
        id,
        name: spec.name,
        phase: api::Phase::Queued,
        phase_since_ms: submitted,
        submitted_ms: submitted,
        started_ms: None,
        ended_ms: None,
        replicas: 0,
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
        let summary: JobSummary = serde_json::from_str(&ended.summary).ok()?;
        let (usage, report) = (summary.usage, summary.report.map(|received| received.report));
        job.phase = phase(&summary.phase);
        job.phase_since_ms = ended.ended.0;
        job.ended_ms = Some(ended.ended.0);
        job.started_ms = usage.first_started.map(|at| at.0);
        job.epochs = report.as_ref().map(|report| report.progress.epochs);
        let reported = report.as_ref().and_then(|report| work_done(spec.work?, report));
        // The last words of a job that trained to its end came a little before that.
        job.progress = if summary.phase == Phase::Succeeded { spec.work.map(|_| 1.0) } else { reported };
        job.attained_gpu_s = usage.attained_gpu_s();
        job.queued_s = usage.queued_s();
        (job.restarts, job.retries) = (usage.restarts, usage.retries);
        job.failure = summary.failure;
    }
    Some(job)
}

/// A job that is over, with everything that is known of it.
pub fn detail_of_row(row: &JobRow, checkpoint_dir: String) -> Option<api::JobDetail> {
    let job = job_of_row(row)?;
    let asked: JobRequest = serde_json::from_str(&row.submitted.request).ok()?;
    let summary: Option<JobSummary> = match &row.ended {
        Some(ended) => Some(serde_json::from_str(&ended.summary).ok()?),
        None => None,
    };
    let report = summary.as_ref().and_then(|summary| summary.report.as_ref());
    let replicas = summary.as_ref().map_or(&[][..], |summary| &summary.replicas);
    let learned = Learned::of(report.map(|received| &received.report));
    Some(api::JobDetail {
        checkpoint_dir,
        job,
        request: request(&asked),
        generation: 0,
        group: Vec::new(),
        replicas_logged: replicas.iter().map(|replica| replica.0).collect(),
        local_batch: learned.local_batch,
        accumulation_steps: learned.accumulation_steps,
        noise_scale: learned.noise_scale,
        replicas_profiled: learned.replicas_profiled,
        restart_cost_s: summary.as_ref().and_then(|summary| summary.usage.restart_cost_s),
        reported_ms: report.map(|received| received.at.0),
        is_silent: false,
    })
}

/// The cluster as a whole.
pub fn cluster_status(cluster: &Cluster<'_>, policy: &str) -> api::ClusterStatus {
    let engine = cluster.engine();
    let mut jobs: BTreeMap<api::Phase, u64> = BTreeMap::new();
    for job in engine.jobs() {
        *jobs.entry(phase(job.phase())).or_default() += 1;
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

/// Nodes that are up, in order of their names.
pub fn nodes(cluster: &Cluster<'_>) -> api::NodeList {
    let engine = cluster.engine();
    let mut jobs: BTreeMap<NodeId, Vec<api::NodeJob>> = BTreeMap::new();
    for job in engine.jobs() {
        for (node, replicas) in job.group().iter() {
            let (id, name, is_guest) = (job.id().0, job.spec().name.clone(), job.guest_of().is_some());
            let on_node = api::NodeJob { id, name, replicas, is_guest };
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
            is_draining: node.is_draining(),
            cooling_until_ms: node.cooling_until().filter(|until| *until > cluster.now()).map(|until| until.0),
            jobs: jobs.remove(&node.id()).unwrap_or_default(),
        })
        .collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    api::NodeList { nodes }
}

/// A line of history; nothing if it makes no sense.
pub fn event(entry: &HistoryEntry) -> Option<api::Event> {
    let history_event: HistoryEvent = serde_json::from_str(&entry.text).ok()?;
    let serde_json::Value::Object(mut detail) = serde_json::from_str(&entry.text).ok()? else { return None };
    let kind = detail.remove("happened")?.as_str()?.to_owned();
    Some(api::Event {
        sequence: entry.sequence,
        at_ms: entry.at.0,
        job: entry.job.map(|job| job.0),
        kind,
        text: history_event.to_string(),
        detail: serde_json::Value::Object(detail),
    })
}

/// What a user asks for, in our own words.
pub fn job_request(asked: api::SubmitRequest) -> JobRequest {
    let replicas_max = asked.replicas_max.unwrap_or_else(|| asked.replicas_requested.max(REPLICAS_MAX));
    let spec = JobSpec {
        name: asked.name.unwrap_or_else(|| default_name(&asked.command)),
        replicas_requested: asked.replicas_requested,
        replicas_min: asked.replicas_min,
        replicas_max,
        flexibility: flexibility(asked.flexibility),
        batch_size: asked.batch_size,
        priority: asked.priority,
        work: asked.work.map(work),
        retries_max: asked.retries_max,
    };
    JobRequest { spec, command: asked.command, working_dir: asked.working_dir.into(), environment: asked.environment }
}

/// How a job may be moved and resized, in our own words.
pub(crate) const fn flexibility(asked: api::Flexibility) -> Flexibility {
    match asked {
        api::Flexibility::Elastic => Flexibility::Elastic,
        api::Flexibility::NonPreemptible => Flexibility::NonPreemptible,
        api::Flexibility::Rigid => Flexibility::Rigid,
    }
}

/// How long a job is to train, in our own words.
pub(crate) const fn work(asked: api::Work) -> Work {
    match asked {
        api::Work::Epochs(epochs) => Work::Epochs(epochs),
        api::Work::BaselineSteps(steps) => Work::BaselineSteps(steps),
    }
}

/// The script that an interpreter is given, else the program.
fn default_name(command: &[String]) -> String {
    let stem = |text: &String| Path::new(text).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let program = command.first().and_then(stem).unwrap_or_default();
    let is_interpreter = ["python", "sh", "bash", "env", "torchrun"].iter().any(|name| program.starts_with(name));
    let script = command.iter().skip(1).find(|argument| argument.ends_with(".py") || argument.ends_with(".sh"));
    let name = script.filter(|_| is_interpreter).and_then(stem).unwrap_or(program);
    if name.is_empty() { "job".to_owned() } else { name }
}

fn request(asked: &JobRequest) -> api::SubmitRequest {
    let JobRequest { spec, command, working_dir, environment } = asked;
    api::SubmitRequest {
        name: Some(spec.name.clone()),
        command: command.clone(),
        working_dir: working_dir.to_string_lossy().into_owned(),
        environment: environment.clone(),
        replicas_requested: spec.replicas_requested,
        replicas_min: spec.replicas_min,
        replicas_max: Some(spec.replicas_max),
        flexibility: match spec.flexibility {
            Flexibility::Elastic => api::Flexibility::Elastic,
            Flexibility::NonPreemptible => api::Flexibility::NonPreemptible,
            Flexibility::Rigid => api::Flexibility::Rigid,
        },
        batch_size: spec.batch_size,
        priority: spec.priority,
        work: spec.work.map(|work| match work {
            Work::Epochs(epochs) => api::Work::Epochs(epochs),
            Work::BaselineSteps(steps) => api::Work::BaselineSteps(steps),
        }),
        retries_max: spec.retries_max,
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

/// Where a phase belongs in the words of the interface.
pub(crate) fn phase(phase: &Phase) -> api::Phase {
    match phase {
        Phase::Queued { .. } => api::Phase::Queued,
        Phase::Starting => api::Phase::Starting,
        Phase::Running => api::Phase::Running,
        Phase::Resizing { .. } => api::Phase::Resizing,
        Phase::Paused => api::Phase::Paused,
        Phase::Succeeded => api::Phase::Succeeded,
        Phase::Failed { .. } => api::Phase::Failed,
        Phase::Cancelled => api::Phase::Cancelled,
    }
}

/// Why a job was given up, `name` telling what a node is called.
pub(crate) fn failure(phase: &Phase, name: impl Fn(NodeId) -> String) -> Option<String> {
    let Phase::Failed { reason } = phase else { return None };
    let (cause, retries) = match *reason {
        FailureReason::Permanent { cause } => (cause, None),
        FailureReason::RetriesExhausted { retries, cause } => (cause, Some(retries)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_without_a_name_is_called_after_its_script_or_program() {
        let name = |command: &[&str]| default_name(&command.iter().map(|&it| it.to_owned()).collect::<Vec<_>>());
        assert_eq!(name(&["/opt/train", "x.py"]), "train");
        assert_eq!(name(&["python3", "-u", "src/resnet.py", "--lr", "1"]), "resnet");
        assert_eq!(name(&["python3", "-m", "imagenet"]), "python3");
        assert_eq!(name(&["/"]), "job");
    }
}
