//! What an operator counts and measures, for Prometheus.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pollux_api::ClusterStatus;
use pollux_backend::Exit;
use pollux_engine::{FailureReason, StopReason};
use pollux_policy::PlanError;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use serde::Serialize;

use crate::explanation::WAIT_WORDS;

/// Seconds of work inside of the scheduler.
const WORK_S: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
/// Seconds until an answer begins; long polls wait up to a minute.
const REQUEST_S: [f64; 10] = [0.001, 0.0025, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 75.0];

/// One label and its value.
type Label = [(&'static str, String); 1];
/// Counted apart by one label.
type Counters = Family<Label, Counter>;
/// By route and class of status.
type Requests = Family<[(&'static str, String); 2], Histogram>;

/// Everything that `/metrics` tells.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub(crate) rounds: Counter,
    pub(crate) plan_seconds: Histogram,
    pub(crate) commits: Counter,
    pub(crate) commit_seconds: Histogram,
    /// Those that wait for a change of their assignment.
    pub(crate) waiting_workers: Gauge,
    pub(crate) connections: Gauge,
    plans_rejected: Counters,
    group_changes: Counters,
    group_stops: Counters,
    replicas_ended: Counters,
    failed_starts: Counters,
    jobs_ended: Counters,
    jobs_failed: Counters,
    refusals: Counters,
    connections_refused: Counters,
    requests: Counters,
    request_seconds: Requests,
    levels: Levels,
}

/// What is read off the cluster when somebody asks.
#[derive(Debug, Default)]
struct Levels {
    jobs: Family<Label, Gauge>,
    waiting: Family<Label, Gauge>,
    nodes: Gauge,
    gpus: Gauge,
    gpus_held: Gauge,
    goodput: Gauge<f64, AtomicU64>,
    degraded: Gauge,
    journal_records: Gauge,
    events: Counter,
}

/// The cluster when somebody asks.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) status: ClusterStatus,
    /// Jobs that wait, by what for.
    pub(crate) waiting: BTreeMap<&'static str, u64>,
    pub(crate) nodes: usize,
    pub(crate) events: u64,
    pub(crate) journal_records: u64,
}

impl Metrics {
    pub(crate) fn new(policy: &'static str) -> Self {
        let metrics = Self {
            registry: Registry::default(),
            rounds: Counter::default(),
            plan_seconds: Histogram::new(WORK_S),
            plans_rejected: counters("reason", &["capacity"]),
            commits: Counter::default(),
            commit_seconds: Histogram::new(WORK_S),
            waiting_workers: Gauge::default(),
            connections: Gauge::default(),
            group_changes: counters("kind", &["launch", "resize", "stop"]),
            group_stops: counters("reason", &["preempted", "failed", "node_lost", "time_limit"]),
            replicas_ended: counters("how", &["success", "exit_code", "signal", "lost"]),
            failed_starts: counters("kind", &["machine", "permanent"]),
            jobs_ended: counters("phase", &["succeeded", "failed", "cancelled"]),
            jobs_failed: counters("reason", &["permanent", "retries", "machines", "time_limit", "dependency"]),
            refusals: counters("reason", &["unauthorized"]),
            connections_refused: counters("reason", &["too_many", "tls"]),
            requests: counters("status", &["1xx", "2xx", "3xx", "4xx", "5xx"]),
            request_seconds: Requests::new_with_constructor(|| Histogram::new(REQUEST_S)),
            levels: Levels::default(),
        };
        metrics.registered(policy)
    }

    fn registered(mut self, policy: &'static str) -> Self {
        let (mut registry, levels) = (Registry::with_prefix("pollux"), &self.levels);
        let info = Info::new([("version", env!("CARGO_PKG_VERSION")), ("policy", policy)]);
        registry.register("build", "Version and policy", info);
        registry.register("jobs", "Live jobs by phase", levels.jobs.clone());
        registry.register("jobs_waiting", "Live jobs that wait, by what for", levels.waiting.clone());
        registry.register("nodes", "Nodes that are up", levels.nodes.clone());
        registry.register("gpus", "GPUs of nodes that are up", levels.gpus.clone());
        registry.register("gpus_held", "GPUs that replicas hold", levels.gpus_held.clone());
        let goodput = "Samples per second times what each is worth, of all jobs";
        registry.register("goodput", goodput, levels.goodput.clone());
        registry.register("degraded", "1 while nothing can be written", levels.degraded.clone());
        let records = "Records that a restart would replay";
        registry.register("journal_records", records, levels.journal_records.clone());
        registry.register("events", "Events in the history of the cluster", levels.events.clone());
        registry.register("rounds", "Plans made", self.rounds.clone());
        registry.register("plan_seconds", "What plans took", self.plan_seconds.clone());
        let rejected = "Plans that could not be used, by what was wrong with them";
        registry.register("plans_rejected", rejected, self.plans_rejected.clone());
        registry.register("commits", "Durable writes to the journal", self.commits.clone());
        registry.register("commit_seconds", "What durable writes took", self.commit_seconds.clone());
        let changes = "Groups of replicas ordered, changed and ended";
        registry.register("group_changes", changes, self.group_changes.clone());
        let stops = "Groups or parts of them that were stopped, by reason";
        registry.register("group_stops", stops, self.group_stops.clone());
        let ended = "Replicas that ended, by how they did";
        registry.register("replicas_ended", ended, self.replicas_ended.clone());
        let failed = "Replicas that could not be started, by what is at fault";
        registry.register("failed_starts", failed, self.failed_starts.clone());
        registry.register("jobs_ended", "Jobs that are over, by how they ended", self.jobs_ended.clone());
        registry.register("jobs_failed", "Jobs that were given up, by reason", self.jobs_failed.clone());
        let waiting = "Workers that wait for a change of their assignment";
        registry.register("waiting_workers", waiting, self.waiting_workers.clone());
        registry.register("connections", "Connections that are open", self.connections.clone());
        let refused = "Connections that were hung up on";
        registry.register("connections_refused", refused, self.connections_refused.clone());
        registry.register("http_requests", "Requests by class of their status", self.requests.clone());
        registry.register("http_refusals", "Requests that were refused, by reason", self.refusals.clone());
        let until_answered = "Until answers began, by route and class of status";
        registry.register("http_request_seconds", until_answered, self.request_seconds.clone());
        self.registry = registry;
        self
    }

    /// Groups that were launched, resized or stopped since the process began.
    pub fn group_changes(&self, kind: &'static str) -> u64 {
        self.group_changes.get_or_create(&label("kind", kind)).get()
    }

    pub(crate) fn count_group_change(&self, kind: &'static str) {
        self.group_changes.get_or_create(&label("kind", kind)).inc();
    }

    pub(crate) fn count_stop(&self, why: StopReason) {
        self.group_stops.get_or_create(&label("reason", &word(&why))).inc();
    }

    pub(crate) fn count_rejected_plan(&self, error: &PlanError) {
        self.plans_rejected.get_or_create(&label("reason", error.rule())).inc();
    }

    pub(crate) fn count_ended_replica(&self, exit: Exit) {
        let how = match exit {
            Exit::Code(0) => "success",
            Exit::Code(_) => "exit_code",
            Exit::Signal(_) => "signal",
            Exit::OutOfMemory => "out_of_memory",
            Exit::Evicted => "evicted",
            Exit::Lost => "lost",
        };
        self.replicas_ended.get_or_create(&label("how", how)).inc();
    }

    pub(crate) fn count_failed_job(&self, reason: &FailureReason) {
        let reason = match reason {
            FailureReason::Permanent { .. } => "permanent",
            FailureReason::RetriesExhausted { .. } => "retries",
            FailureReason::MachineFailures { .. } => "machines",
            FailureReason::TimeLimit { .. } => "time_limit",
            FailureReason::Dependency { .. } => "dependency",
        };
        self.jobs_failed.get_or_create(&label("reason", reason)).inc();
    }

    pub(crate) fn count_failed_start(&self, kind: &'static str) {
        self.failed_starts.get_or_create(&label("kind", kind)).inc();
    }

    pub(crate) fn count_ended_job(&self, phase: &str) {
        self.jobs_ended.get_or_create(&label("phase", phase)).inc();
    }

    pub(crate) fn count_refused_connection(&self, reason: &'static str) {
        self.connections_refused.get_or_create(&label("reason", reason)).inc();
    }

    pub(crate) fn count_refusal(&self, reason: &'static str) {
        self.refusals.get_or_create(&label("reason", reason)).inc();
    }

    pub(crate) fn count_request(&self, route: &str, status: u16, took: Duration) {
        let class = format!("{}xx", (status / 100).clamp(1, 5));
        self.requests.get_or_create(&label("status", &class)).inc();
        let labels = [("route", route.to_owned()), ("status", class)];
        self.request_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// The page that Prometheus reads.
    pub(crate) fn text(&self, reading: &Reading) -> String {
        let Reading { status, waiting, nodes, events, journal_records } = reading;
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.levels.jobs.clear();
        for (phase, count) in &status.jobs {
            let labels = label("phase", &word(phase));
            self.levels.jobs.get_or_create(&labels).set(whole(*count));
        }
        // Those that are not there any more are 0, so that what is drawn of them ends.
        self.levels.waiting.clear();
        for reason in WAIT_WORDS {
            let count = waiting.get(reason).copied().unwrap_or_default();
            self.levels.waiting.get_or_create(&label("reason", reason)).set(whole(count));
        }
        self.levels.nodes.set(whole(*nodes as u64));
        self.levels.gpus.set(status.gpus.into());
        self.levels.gpus_held.set(status.gpus_held.into());
        self.levels.goodput.set(status.goodput);
        self.levels.degraded.set(status.is_degraded.into());
        self.levels.journal_records.set(whole(*journal_records));
        self.levels.events.inner().store(*events, Ordering::Relaxed);
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("text takes whatever is written");
        text
    }
}

fn label(name: &'static str, value: &str) -> Label {
    [(name, value.to_owned())]
}

/// The name of one of our enums' variants: without the quotes of JSON.
fn word(value: &impl Serialize) -> String {
    crate::text(value).trim_matches('"').to_owned()
}

/// Counters whose usual values are told though they are 0.
fn counters(name: &'static str, usual: &[&str]) -> Counters {
    let counters = Counters::default();
    for value in usual {
        drop(counters.get_or_create(&label(name, value)));
    }
    counters
}
