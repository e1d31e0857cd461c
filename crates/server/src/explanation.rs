//! Why a job has what it has, for people.

mod plan;
mod shortage;
mod other_types;

use std::collections::BTreeMap;

use pollux_api as api;
use pollux_engine::{Explanation, Job, SizeChange, Wait};
use pollux_job::{After, Flexibility, JobId, Phase, size};
use pollux_policy::{Binding, Timestamp};

use crate::Cluster;
use crate::history_event::counted;
use other_types::{types, worth_of_types};
pub(crate) use plan::plan_status;
use shortage::{drained, most_of_one_type, shortage};

/// Why a live job has what it has, what more or fewer would be worth, and when that may change. Of other jobs, those are
/// named that may be shown to whoever asks.
pub fn explain(cluster: &Cluster<'_>, id: JobId, shows: &dyn Fn(JobId) -> bool) -> Option<api::Explanation> {
    let engine = cluster.engine();
    let (job, explanation) = (engine.job(id)?, engine.explain(id)?);
    let reason = explanation.reason;
    let payer =
        reason.and_then(|reason| reason.payer).filter(|(payer, _)| shows(*payer)).and_then(|(payer, change)| {
            let name = engine.job(payer)?.spec().name.clone();
            Some(api::Payer { id: payer.0, name, change })
        });
    let sizes = engine.outlook(id);
    let change = |replicas: u32| {
        let goodput = |replicas| {
            let size = sizes.iter().find(|size| size.choice.shape.replicas() == replicas)?;
            Some(size.choice.goodput).filter(|goodput| *goodput > 0.0)
        };
        Some(goodput(replicas)? / goodput(job.group().replicas())? - 1.0)
    };
    let held = job.group().replicas();
    let one_more = change(held.saturating_add(1)).or(reason.and_then(|reason| reason.one_more));
    let one_fewer = held.checked_sub(1).and_then(change).or(reason.and_then(|reason| reason.one_fewer));
    let sizes = sizes.iter().map(|size| api::SizeOutlook {
        replicas: size.choice.shape.replicas(),
        nodes: size.choice.shape.nodes(),
        batch_size: u64::from(size.choice.batch_size()),
        samples_per_s: size.choice.throughput,
        efficiency: size.choice.efficiency,
        goodput: size.choice.goodput,
        is_measured: size.is_measured,
    });
    let types = types(cluster, job);
    Some(api::Explanation {
        id: id.0,
        name: job.spec().name.clone(),
        phase: job.phase(),
        replicas: job.group().replicas(),
        gpus_per_replica: job.per_replica().gpus,
        sentences: sentences(cluster, job, &explanation, (one_more, one_fewer), payer.as_ref(), &types),
        wait: explanation.wait.map(|wait| wait_word(wait).to_owned()),
        binding: reason.map(|reason| binding_word(reason.binding).to_owned()),
        one_more,
        one_fewer,
        payer,
        fair_share: engine.fair_share(),
        next_round_ms: explanation.next_round.map(|at| at.0),
        sizes: sizes.collect(),
        types,
    })
}

/// What is to be said of a job that is over, at a moment.
pub fn explain_ended(job: &api::Job, now_ms: u64) -> api::Explanation {
    let since = |at_ms: u64| duration(now_ms.saturating_sub(at_ms) as f64 / 1_000.0);
    let took = duration(job.ended_ms.unwrap_or(now_ms).saturating_sub(job.submitted_ms) as f64 / 1_000.0);
    let how = match job.phase {
        Phase::Succeeded => "succeeded",
        Phase::Cancelled => "was cancelled",
        Phase::Failed => "failed",
        Phase::Queued | Phase::Starting | Phase::Running | Phase::Resizing | Phase::Paused | Phase::Unknown => {
            "is not over"
        }
    };
    let ended = job.ended_ms.map_or_else(String::new, |at| format!(" {} ago", since(at)));
    let mut sentences = vec![
        format!("{} (job {}) {how}{ended}, {took} after it was submitted.", job.name, job.id),
        format!("It used {} of GPU time and waited for {}.", duration(job.attained_gpu_s), duration(job.queued_s)),
    ];
    sentences.extend(job.failure.as_ref().map(|failure| format!("It failed: {failure}.")));
    api::Explanation {
        id: job.id,
        name: job.name.clone(),
        phase: job.phase,
        replicas: 0,
        gpus_per_replica: job.gpus_per_replica,
        sentences,
        wait: None,
        binding: None,
        one_more: None,
        one_fewer: None,
        payer: None,
        fair_share: None,
        next_round_ms: None,
        sizes: Vec::new(),
        types: Vec::new(),
    }
}

fn sentences(
    cluster: &Cluster<'_>,
    job: &Job,
    explanation: &Explanation,
    (one_more, one_fewer): (Option<f64>, Option<f64>),
    payer: Option<&api::Payer>,
    types: &[api::TypeOutlook],
) -> Vec<String> {
    let mut sentences = vec![situation(cluster, job)];
    sentences.extend(job.size_change().and_then(|change| size_change(cluster.now(), job, change)));
    sentences.extend(explanation.wait.and_then(|wait| waiting(cluster, job, wait)));
    let has_failed = job.phase() == Phase::Queued && job.machine_failures() > 0;
    let failure = cluster.last_failures.get(&job.id()).filter(|_| has_failed);
    sentences.extend(failure.map(|failure| format!("The last time: {failure}.")));
    let unreachable = job
        .group()
        .iter()
        .filter(|(node, _)| cluster.engine().node(*node).is_some_and(pollux_engine::Node::is_unreachable));
    sentences.extend(unreachable.map(|(node, _)| {
        let name = cluster.node_name(node);
        format!("{name} does not answer: what it runs there is kept until the node is back or known to be gone.")
    }));
    let is_given = job.group().is_empty() && !job.target().is_empty();
    if let Some(reason) = explanation.reason.filter(|_| job.is_plannable() && !is_given) {
        sentences.push(format!("It {}.", binding(cluster, job, reason.binding)));
        if job.target().is_empty() {
            sentences.extend(drained(cluster));
        }
        let has_told = job.report().is_some() && job.spec().flexibility != Flexibility::Rigid;
        sentences.extend(worth(job, one_more, one_fewer).filter(|_| has_told));
        sentences.extend(worth_of_types(types));
        let competes = matches!(reason.binding, Binding::Contention | Binding::RestartCost);
        sentences.extend(payer.filter(|_| competes).map(|payer| {
            let loss = percent(-payer.change);
            let what = if job.per_replica().gpus == 1 { "GPU" } else { "GPUs" };
            format!(
                "The {what} would have to come from {} (job {}), whose goodput would fall by {loss}.",
                payer.name, payer.id
            )
        }));
    }
    if job.is_silent() && !job.group().is_empty() {
        sentences.push("It doesn't report to Pollux, so it won't be resized.".to_owned());
    }
    if job.is_plannable() {
        sentences.push(match explanation.next_round {
            Some(at) => format!(
                "The next plan is made in {}, or earlier when a job comes or goes.",
                duration(at.since_s(cluster.now()).max(0.0))
            ),
            None => "The next plan is made when a job or a node comes or goes.".to_owned(),
        });
    }
    sentences
}

/// The type of a job's GPUs, in a cluster of more than one.
fn gpu_type(cluster: &Cluster<'_>, job: &Job) -> String {
    let engine = cluster.engine();
    let mut types = engine.nodes().map(pollux_engine::Node::gpu_type);
    let first = types.next();
    let name = engine.gpu_type_of(job.id()).filter(|_| types.any(|other| Some(other) != first));
    name.map_or_else(String::new, |name| format!(" ({name})"))
}

/// What it is doing.
fn situation(cluster: &Cluster<'_>, job: &Job) -> String {
    let name = format!("{} (job {})", job.spec().name, job.id().0);
    let since = duration(cluster.now().since_s(job.phase_since()));
    let nodes: Vec<&str> = job.group().iter().map(|(node, _)| cluster.node_name(node)).collect();
    let gpus = format!("{}{} of {}", gpus(job, job.group().replicas()), gpu_type(cluster, job), nodes.join(", "));
    match job.phase() {
        Phase::Queued => format!("{name} has waited for {since}."),
        Phase::Starting => format!("{name} is starting on {gpus}, for {since} now."),
        Phase::Paused => format!("{name} was paused {since} ago."),
        Phase::Succeeded | Phase::Failed | Phase::Cancelled | Phase::Unknown => {
            format!("{name} {} {since} ago.", job.phase())
        }
        Phase::Running | Phase::Resizing => match job.pace() {
            None => format!("{name} is running on {gpus}; no progress reported yet."),
            Some(pace) => {
                let goodput = match (pace.samples_per_s, pace.goodput()) {
                    (Some(rate), Some(goodput)) => format!(
                        ": {rate:.0} samples/s at {} efficiency, a goodput of {goodput:.0} samples/s",
                        percent(pace.efficiency)
                    ),
                    _ => String::new(),
                };
                format!("{name} trains on {gpus} with batch {}{goodput}.", pace.batch_size)
            }
        },
    }
}

/// What the last change of its size was.
fn size_change(now: Timestamp, job: &Job, change: SizeChange) -> Option<String> {
    let SizeChange { at, from, to } = change;
    let ago = duration(now.since_s(at));
    if !job.is_plannable() || from == to {
        return None;
    }
    Some(match (from, to) {
        (_, 0) => format!("{ago} ago it gave up its {}.", gpus(job, from)),
        (0, to) => format!("It was started again on {} {ago} ago.", gpus(job, to)),
        (from, to) => {
            let how = if to < from { "shrunk" } else { "grown" };
            format!("It was {how} from {} to {} {ago} ago.", job.per_replica().gpus_of(from), gpus(job, to))
        }
    })
}

fn waiting_for_jobs(job: &Job) -> String {
    let names = job.waits_for().iter().map(|dependency| match dependency.after {
        After::Success => format!("{} to succeed", dependency.job),
        After::End => format!("{} to end", dependency.job),
    });
    format!("It waits for {}.", names.collect::<Vec<_>>().join(" and "))
}

/// What it waits for.
fn waiting(cluster: &Cluster<'_>, job: &Job, wait: Wait) -> Option<String> {
    Some(match wait {
        Wait::Round => "It was submitted after the last plan.".to_owned(),
        Wait::Gpus => return None,
        Wait::Release => {
            let more = job.target().replicas().saturating_sub(job.group().replicas());
            let more = job.per_replica().gpus_of(more);
            format!("{} planned for it, and will be free when the jobs that use them have stopped.", are(more))
        }
        Wait::Ready if job.phase() == Phase::Starting => "It hasn't reported that it is training yet.".to_owned(),
        Wait::Ready => "Its replicas are joining their new group.".to_owned(),
        Wait::Pending => {
            let reasons = cluster.fleet.pending_of(job.id()).map(|(id, reason)| format!("replica {} ({reason})", id.0));
            format!("It cannot run yet: {}.", reasons.collect::<Vec<_>>().join(", "))
        }
        Wait::Backoff { until } if job.machine_failures() > 0 => {
            let seconds = duration(until.since_s(cluster.now()).max(0.0));
            let limit = cluster.settings().engine.machine_failures_max;
            let failures = times(job.machine_failures());
            format!(
                "A machine could not start it {failures} in a row; it is tried again in {seconds}, and given up after \
                 {limit} times."
            )
        }
        Wait::Backoff { until } => {
            let seconds = duration(until.since_s(cluster.now()).max(0.0));
            format!("It failed {}; it is tried again in {seconds}.", times(job.usage(cluster.now()).retries))
        }
        Wait::Jobs => waiting_for_jobs(job),
        Wait::Resume => "It is paused; `pollux resume` lets it continue.".to_owned(),
    })
}

/// What keeps a job from having more, as the end of a sentence about it.
fn binding(cluster: &Cluster<'_>, job: &Job, binding: Binding) -> String {
    let (spec, planned, replica) = (job.spec(), job.target().replicas(), job.per_replica());
    let fewest = gpus(job, spec.fewest());
    let usable = cluster.engine().usable_gpus();
    let added = "it waits for nodes to be added";
    match binding {
        Binding::Contention if planned == 0 => shortage(cluster, job),
        Binding::Contention => "gets no more: others make better use of the rest".to_owned(),
        Binding::NoGain => "would not gain by more GPUs".to_owned(),
        Binding::Maximum if replica.gpus_of(planned) >= usable => {
            format!("has the whole cluster: {}", counted(usable, "GPU"))
        }
        Binding::Maximum if planned < spec.most() => {
            format!("has all GPUs of their type that it can use: {}", gpus(job, planned))
        }
        Binding::Maximum => format!("has its maximum: {}", gpus(job, planned)),
        Binding::Profile => match job.replicas_profiled() {
            Some(profiled) => format!("gets more once it is measured beyond {}", gpus(job, profiled)),
            None => "starts small, to be measured first".to_owned(),
        },
        Binding::RestartCost => match job.usage(cluster.now()).restart_cost_s {
            Some(cost_s) => format!("waits for its {} restart cost to pay off", duration(cost_s)),
            None => "waits for the cost of a restart to pay off".to_owned(),
        },
        Binding::Request if spec.flexibility == Flexibility::Rigid => {
            format!("asked for exactly {}", gpus(job, spec.replicas))
        }
        Binding::Request => "keeps what it has for now".to_owned(),
        Binding::Impossible => {
            let how = if spec.flexibility == Flexibility::Rigid { "exactly" } else { "at least" };
            let most = most_of_one_type(cluster, job, &|node| u64::from(node.gpus()));
            format!("needs {how} {fewest} of one type, and the cluster has {most}: {added}")
        }
        Binding::NoSuchType => format!("may run only on {}, which no node has: {added}", spec.gpu_types.join(" or ")),
        Binding::TooLargeForANode => {
            format!("needs {} on one node for each replica, and no node has as many: {added}", gpus(job, 1))
        }
        Binding::NotEnoughCpus => {
            let cpus = counted(replica.cpus, "CPU");
            format!("needs {cpus} for each replica, and no node with enough GPUs has as many: {added}")
        }
        Binding::NotEnoughMemory => {
            let memory = size(replica.memory);
            format!("needs {memory} of memory for each replica, and no node with enough GPUs has as much: {added}")
        }
        Binding::EqualShare => "has an equal share of time: the best shares could not be computed".to_owned(),
        Binding::Late => {
            "will not be done as soon as it should, even with all the time on fast GPUs that it can be given".to_owned()
        }
        // Reasons may gain others.
        _ => "has what the policy gives it".to_owned(),
    }
}

/// What one replica more or fewer would be worth; where that is one GPU, it is called so.
fn worth(job: &Job, one_more: Option<f64>, one_fewer: Option<f64>) -> Option<String> {
    let has = job.group().replicas();
    let one = if job.per_replica().gpus == 1 { "GPU" } else { "replica" };
    let more = one_more.map(|gain| match gain > 0.0005 {
        true => format!("with one {one} more its goodput would rise by {}", percent(gain)),
        false => format!("with one {one} more its goodput would not rise"),
    });
    let whose =
        if one_more.is_some() { "with one fewer it".to_owned() } else { format!("with one {one} fewer its goodput") };
    let fewer = one_fewer.filter(|_| has > 0).map(|change| match has {
        1 => format!("without its {one} it would wait"),
        _ if change < 0.0 => format!("{whose} would fall by {}", percent(-change)),
        // Fewer may fit on fewer nodes.
        _ => format!("{whose} would rise by {}", percent(change)),
    });
    let text = [more, fewer].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let mut letters = text.chars();
    let first = letters.next()?;
    Some(format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

/// The GPUs of so many replicas of a job.
fn gpus(job: &Job, replicas: u32) -> String {
    counted(job.per_replica().gpus_of(replicas), "GPU")
}

fn are(gpus: u32) -> String {
    if gpus == 1 { "1 GPU is".to_owned() } else { format!("{gpus} GPUs are") }
}

fn times(number: u32) -> String {
    if number == 1 { "once".to_owned() } else { format!("{number} times") }
}

fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent.abs() < 10.0 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}

/// Time in two units at most, as the dashboard writes it.
pub(crate) fn duration(seconds: f64) -> String {
    let s = seconds.round().max(0.0) as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3_600 => format!("{} m {:02} s", s / 60, s % 60),
        3_600..86_400 => format!("{} h {:02} m", s / 3_600, s % 3_600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// All words for what jobs wait for.
pub(crate) const WAIT_WORDS: [&str; 8] = ["round", "gpus", "release", "ready", "pending", "backoff", "jobs", "resume"];

/// How many jobs wait, by what for.
pub(crate) fn waiting_jobs(cluster: &Cluster<'_>) -> BTreeMap<&'static str, u64> {
    let mut waiting = BTreeMap::new();
    for wait in cluster.live_jobs().filter_map(|id| cluster.engine().explain(id)?.wait) {
        *waiting.entry(wait_word(wait)).or_default() += 1;
    }
    waiting
}

const fn wait_word(wait: Wait) -> &'static str {
    match wait {
        Wait::Round => "round",
        Wait::Gpus => "gpus",
        Wait::Release => "release",
        Wait::Ready => "ready",
        Wait::Pending => "pending",
        Wait::Backoff { .. } => "backoff",
        Wait::Jobs => "jobs",
        Wait::Resume => "resume",
    }
}

fn binding_word(binding: Binding) -> &'static str {
    match binding {
        Binding::Contention => "contention",
        Binding::NoGain => "no_gain",
        Binding::Maximum => "maximum",
        Binding::Profile => "profile",
        Binding::RestartCost => "restart_cost",
        Binding::Request => "request",
        Binding::Impossible => "impossible",
        Binding::NoSuchType => "no_such_type",
        Binding::TooLargeForANode => "too_large_for_a_node",
        Binding::NotEnoughCpus => "not_enough_cpus",
        Binding::NotEnoughMemory => "not_enough_memory",
        Binding::EqualShare => "equal_share",
        Binding::Late => "late",
        // Reasons may gain others.
        _ => "other",
    }
}
