use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pollux_agent::{AgentReport, Progress, Tuning};
use pollux_engine::{Command, Engine, EngineSettings, Event, FailureKind, Job, JobState, Revision, Wait};
use pollux_job::{Flexibility, JobId, JobSpec, PodsPer, Work};
use pollux_model::{BatchLimits, GpuTypeName};
use pollux_policy::{
    Allocation, Assignment, ClusterView, NodeEnd, NodeId, PlacementRules, Plan, Policy, Reason, Timestamp,
};

/// Plays a script under the default settings and compares what came out with what it says.
#[track_caller]
pub(crate) fn check(script: &str) {
    check_with(EngineSettings::default(), script);
}

#[track_caller]
pub(crate) fn check_with(settings: EngineSettings, script: &str) {
    let planned = Arc::new(Mutex::new(BTreeMap::new()));
    let policy = Scripted { planned: Arc::clone(&planned) };
    let mut engine = Engine::with_policy(settings, Box::new(policy)).expect("settings are valid");
    let (mut expected, mut actual) = (String::new(), String::new());
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (input, output) = line.split_once("=>").unwrap_or((line, ""));
        let words: Vec<&str> = input.split_whitespace().collect();
        let said = play(&mut engine, &planned, &words);
        engine.check_invariants();
        expected += &format!("{} => {}\n", words.join(" "), output.split_whitespace().collect::<Vec<_>>().join(" "));
        actual += &format!("{} => {said}\n", words.join(" "));
    }
    assert!(expected == actual, "expected:\n{expected}\nactual:\n{actual}");
}

/// What a plan gives a job: replicas, and whose guest they are.
type Share = (Allocation, Option<JobId>);

/// A policy that reads its plans from the script.
struct Scripted {
    planned: Arc<Mutex<BTreeMap<JobId, Share>>>,
}

impl Policy for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn plan(&mut self, _now: Timestamp, view: &ClusterView<'_>) -> Plan {
        let mut planned = self.planned.lock().expect("nobody panicked with it");
        let mut assignments: Vec<Assignment> = Vec::new();
        for job in view.jobs {
            let kept = || (job.allocation.clone(), job.guest_of);
            let (allocation, guest_of) = planned.remove(&job.id).unwrap_or_else(kept);
            assignments.push(Assignment { job: job.id, allocation, guest_of, reason: Reason::default() });
        }
        // What is left over names jobs that the view does not have: a broken plan.
        for (job, (allocation, guest_of)) in std::mem::take(&mut *planned) {
            assignments.push(Assignment { job, allocation, guest_of, reason: Reason::default() });
        }
        Plan { assignments, quality: None }
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }
}

fn play(engine: &mut Engine, planned: &Mutex<BTreeMap<JobId, Share>>, words: &[&str]) -> String {
    let [time, verb, words @ ..] = words else { panic!("a line needs a time and an event: {words:?}") };
    let now = Timestamp(0).after_s(time.parse().expect("a time"));
    match *verb {
        "show" => return engine.job(job(words[0])).map_or_else(|| "gone".to_owned(), show_job),
        "usage" => return show_usage(engine, job(words[0]), now),
        "explain" => return show_wait(engine, job(words[0])),
        "wakeup" => return engine.next_wakeup().map_or_else(|| "never".to_owned(), |at| at.as_s().to_string()),
        "view" => return engine.view(now, show_view),
        "nodes" => return show_nodes(engine),
        "ages" => return engine.view(now, |view| show_ages(now, view)),
        "outstanding" => {
            let mut out = Vec::new();
            engine.outstanding(&mut out);
            return show_commands(&out);
        }
        "tick" => {
            let plan = words.iter().map(|word| word.split_once('=').expect("job=allocation"));
            planned.lock().expect("nobody panicked with it").extend(plan.map(|(name, text)| (job(name), share(text))));
        }
        _ => {}
    }
    let mut out = Vec::new();
    engine.step(now, event(verb, words), &mut out);
    show_commands(&out)
}

fn event(verb: &str, words: &[&str]) -> Event {
    let kind = match words.last() {
        Some(&"permanent") => FailureKind::Permanent,
        Some(&"machine") => FailureKind::Machine,
        _ => FailureKind::Retryable,
    };
    match (verb, words) {
        ("tick", _) => Event::Tick,
        ("submit", [name, replicas, rest @ ..]) => Event::JobSubmitted { job: job(name), spec: spec(replicas, rest) },
        ("ready", [name, group, rest @ ..]) => {
            let pause_s = rest.first().map(|text| text.trim_start_matches("pause=").parse().expect("seconds"));
            Event::GroupReady { job: job(name), revision: revision(group), pause_s }
        }
        ("silent", [name, group]) => Event::GroupSilent { job: job(name), revision: revision(group) },
        ("pending", [name, group]) => Event::GroupPending { job: job(name), revision: revision(group) },
        ("placed", [name, group]) => Event::GroupPlaced { job: job(name), revision: revision(group) },
        ("released", [name, group, text]) => {
            Event::ReplicasReleased { job: job(name), revision: revision(group), allocation: allocation(text) }
        }
        ("succeeded", [name, group]) => Event::JobSucceeded { job: job(name), revision: revision(group) },
        ("failed", [name, group, on, ..]) => {
            Event::ReplicaFailed { job: job(name), revision: revision(group), node: node(on), kind }
        }
        ("launch-failed", [name, group, on, ..]) => {
            Event::LaunchFailed { job: job(name), revision: revision(group), node: node(on), kind }
        }
        ("report", [name, group, rest @ ..]) => {
            Event::Report { job: job(name), revision: revision(group), report: report(rest) }
        }
        ("join", [id, gpus, counted @ ..]) => {
            let value = |key: &str| counted.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            Event::NodeJoined {
                node: node(id),
                gpus: gpus.parse().expect("GPUs"),
                gpu_type: value("type").map(|name| GpuTypeName::new(name).expect("a name")).unwrap_or_default(),
                cpus: value("cpus").map(|text| text.parse().expect("CPUs")),
                memory: value("memory").map(|text| text.parse().expect("bytes")),
            }
        }
        ("resources", [id, counted @ ..]) => {
            let value = |key: &str| counted.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            Event::NodeResources {
                node: node(id),
                cpus: value("cpus").map(|text| text.parse().expect("CPUs")),
                memory: value("memory").map(|text| text.parse().expect("bytes")),
            }
        }
        ("retired", [id]) => Event::NodeRetired { node: node(id) },
        ("lost", [id]) => Event::NodeLost { node: node(id) },
        ("unreachable", [id]) => Event::NodeUnreachable { node: node(id) },
        ("reachable", [id]) => Event::NodeReachable { node: node(id) },
        ("ends", [id, moments @ ..]) => {
            let at = |text: &&str| Timestamp(0).after_s(text.parse().expect("a time"));
            let end = moments.first().map(|drains| NodeEnd { drains_at: at(drains), ends_at: moments.get(1).map(at) });
            Event::NodeEnds { node: node(id), end }
        }
        ("drain", [id]) => Event::NodeDrain { node: node(id) },
        ("undrain", [id]) => Event::NodeUndrain { node: node(id) },
        ("cancel", [name]) => Event::Cancel { job: job(name) },
        ("pause", [name]) => Event::Pause { job: job(name) },
        ("resume", [name]) => Event::Resume { job: job(name) },
        _ => panic!("no such event: {verb} {words:?}"),
    }
}

fn spec(replicas: &str, options: &[&str]) -> JobSpec {
    let mut spec = JobSpec::new("test", replicas.parse().expect("replicas"));
    for option in options {
        match option.split_once('=') {
            None if *option == "rigid" => spec.flexibility = Flexibility::Rigid,
            None if *option == "podpernode" => spec.pods_per = PodsPer::Node,
            None if *option == "nonpreemptible" => spec.flexibility = Flexibility::NonPreemptible,
            Some(("min", value)) => spec.replicas_min = value.parse().expect("replicas"),
            Some(("max", value)) => spec.replicas_max = Some(value.parse().expect("replicas")),
            Some(("gpus", value)) => spec.gpus_per_replica = value.parse().expect("GPUs"),
            Some(("cpus", value)) => spec.cpus = Some(value.parse().expect("CPUs")),
            Some(("types", value)) => spec.gpu_types = value.split(',').map(str::to_owned).collect(),
            Some(("memory", value)) => spec.memory = Some(value.parse().expect("bytes")),
            Some(("retries", value)) => spec.retries = value.parse().expect("retries"),
            Some(("epochs", value)) => spec.work = Some(Work::Epochs(value.parse().expect("epochs"))),
            Some(("steps", value)) => spec.work = Some(Work::BaselineSteps(value.parse().expect("steps"))),
            Some(("limit", value)) => spec.time_limit = Some(value.parse().expect("seconds")),
            Some(("after", value)) => spec.depends_on.push(value.parse().expect("a dependency")),
            Some(("name", value)) => value.clone_into(&mut spec.name),
            _ => panic!("no such option: {option}"),
        }
    }
    spec
}

/// A report of a job with a baseline batch of 100 that has trained for `steps` and perhaps knows its `epoch`.
fn report(options: &[&str]) -> AgentReport {
    let value = |key: &str| options.iter().find_map(|option| option.strip_prefix(key)?.strip_prefix('='));
    let baseline_steps = value("steps").map_or(0.0, |text| text.parse().expect("steps"));
    AgentReport {
        limits: BatchLimits::new(100, 1000, 10, 100).expect("ordered"),
        types: Vec::new(),
        noise: None,
        progress: Progress { baseline_steps, ..Progress::default() },
        epoch_samples: value("epoch").map(|text| text.parse().expect("samples")),
        samples_per_s: value("rate").map(|text| text.parse().expect("a rate")),
        loss: None,
        tuning: value("tuning").map(|text| {
            let (local_batch, accumulation_steps) = text.split_once('x').expect("a tuning such as 32x0");
            let number = |text: &str| text.parse().expect("a number");
            Tuning { local_batch: number(local_batch), accumulation_steps: number(accumulation_steps) }
        }),
        learning_rate_factor: value("factor").map_or(1.0, |text| text.parse().expect("a factor")),
    }
}

fn job(name: &str) -> JobId {
    JobId(name.strip_prefix('j').and_then(|number| number.parse().ok()).expect("a job such as j1"))
}

fn node(name: &str) -> NodeId {
    NodeId(name.strip_prefix('n').and_then(|number| number.parse().ok()).expect("a node such as n0"))
}

fn revision(name: &str) -> Revision {
    Revision(name.strip_prefix('r').and_then(|number| number.parse().ok()).expect("a revision such as r1"))
}

fn share(text: &str) -> Share {
    match text.split_once('@') {
        Some((text, host)) => (allocation(text), Some(job(host))),
        None => (allocation(text), None),
    }
}

fn allocation(text: &str) -> Allocation {
    if text == "none" {
        return Allocation::NONE;
    }
    let entries = text.split('+').map(|entry| entry.split_once('*').expect("replicas such as n0*2"));
    entries.map(|(name, replicas)| (node(name), replicas.parse().expect("replicas"))).collect()
}

fn show_commands(commands: &[Command]) -> String {
    commands.iter().map(show_command).collect::<Vec<_>>().join("; ")
}

fn show_command(command: &Command) -> String {
    match command {
        Command::Launch { job, revision, allocation, guest_of } => {
            format!("launch j{} r{} {}{}", job.0, revision.0, show(allocation), show_host(*guest_of))
        }
        Command::Resize { job, revision, keep, remove, add } => {
            let mut text = format!("resize j{} r{} keep {}", job.0, revision.0, show(keep));
            for (word, part) in [("remove", remove), ("add", add)] {
                if !part.is_empty() {
                    text += &format!(" {word} {}", show(part));
                }
            }
            text
        }
        Command::Stop { job, revision, allocation, why } => {
            let why = format!("{why:?}").to_lowercase();
            format!("stop j{} r{} {} {why}", job.0, revision.0, show(allocation))
        }
        Command::Refused(refusal) => format!("refused: {refusal}"),
        Command::PlanRejected { error } => format!("plan rejected: {error}"),
    }
}

fn show(allocation: &Allocation) -> String {
    let entries = allocation.iter().map(|(node, replicas)| format!("n{}*{replicas}", node.0));
    entries.collect::<Vec<_>>().join("+")
}

fn show_host(guest_of: Option<JobId>) -> String {
    guest_of.map_or_else(String::new, |host| format!("@j{}", host.0))
}

fn show_job(job: &Job) -> String {
    let mut text = job.phase().to_string();
    match job.state() {
        JobState::Queued { retry_at: Some(at) } => text += &format!(" until {}", at.as_s()),
        JobState::Failed { reason } => text += &format!(" {reason:?}"),
        _ => {}
    }
    if !job.group().is_empty() {
        text += &format!(" r{} {}", job.revision().0, show(job.group()));
    }
    if job.target() != job.group() {
        text += &format!(" towards {}", show(job.target()));
    }
    text += &show_host(job.guest_of());
    for leaving in job.leaving() {
        text += &format!(" leaving r{} {}", leaving.revision.0, show(&leaving.allocation));
    }
    text
}

fn show_usage(engine: &Engine, id: JobId, now: Timestamp) -> String {
    let job = engine.job(id).or_else(|| engine.ended_jobs().find(|job| job.id() == id)).expect("a job");
    let usage = job.usage(now);
    format!(
        "gpu_s {} executed_s {} queued_s {} restarts {} cost_s {:?} remaining {:?}",
        usage.attained_gpu_s(),
        usage.executed_s(),
        usage.queued_s(),
        usage.restarts,
        usage.restart_cost_s,
        job.remaining_samples(),
    )
}

fn show_view(view: &ClusterView<'_>) -> String {
    let jobs = view.jobs.iter().map(|job| {
        let pinned = if job.is_pinned() { " pinned" } else { "" };
        let (id, restarts, cost_s) = (job.id.0, job.restarts, job.restart_cost_s);
        let held = format!("{}{}", show(job.allocation), show_host(job.guest_of));
        format!("j{id} [{held}]{pinned} restarts {restarts} cost_s {cost_s}")
    });
    jobs.collect::<Vec<_>>().join("; ")
}

fn show_nodes(engine: &Engine) -> String {
    let nodes = engine.nodes().map(|node| {
        let (id, held, gpus) = (node.id().0, node.gpus_held(), node.gpus());
        let retired = if node.is_retired() { " retired" } else { "" };
        format!("n{id} {held} of {gpus}{retired}")
    });
    nodes.collect::<Vec<_>>().join("; ")
}

fn show_ages(now: Timestamp, view: &ClusterView<'_>) -> String {
    let jobs = view
        .jobs
        .iter()
        .map(|job| format!("j{} {} s old, queued for {} s", job.id.0, job.age_s(now), now.since_s(job.queued_since)));
    jobs.collect::<Vec<_>>().join("; ")
}

fn show_wait(engine: &Engine, id: JobId) -> String {
    let Some(explanation) = engine.explain(id) else { return "gone".to_owned() };
    let wait = match explanation.wait {
        Some(Wait::Backoff { until }) => format!("backoff until {}", until.as_s()),
        Some(wait) => format!("{wait:?}").to_lowercase(),
        None => "nothing".to_owned(),
    };
    let reason = explanation.reason.map(|reason| format!(", {:?}", reason.binding).to_lowercase());
    format!("waits for {wait}{}", reason.unwrap_or_default())
}
