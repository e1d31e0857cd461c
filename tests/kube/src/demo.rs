//! Six trainings share twelve GPUs of three nodes, and the operator that leads is killed in the middle.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pollux_testbed::{Cluster, NAMESPACE, NodeSettings};
use serde_json::json;

use crate::say;

const NODES: usize = 3;
const SAMPLES: &str = "8192";
const LOOK: Duration = Duration::from_secs(3);
const TABLE_EVERY: Duration = Duration::from_secs(30);
const KILL_AT: Duration = Duration::from_secs(80);
/// Generous: machines may be busy.
const LIMIT: Duration = Duration::from_secs(900);

/// A training: its name, when it comes, how its steps scale, its epochs, and the fewest GPUs that it trains on.
const JOBS: [(&str, u64, &str, u32, u32); 6] = [
    ("vision", 0, "good", 60, 1),
    ("speech", 10, "medium", 40, 1),
    ("recommender", 20, "poor", 20, 1),
    ("language", 35, "good", 60, 4),
    ("probe", 50, "medium", 20, 1),
    ("finetune", 60, "good", 40, 6),
];

/// What was seen of a training.
#[derive(Default)]
struct Seen {
    submitted: Option<Instant>,
    ended: Option<Instant>,
    gpus: u64,
    gpus_max: u64,
    changes: u32,
    phase: String,
    restarts: u64,
}

/// A moment that is shown once, from all that kubectl says of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    Waits,
    Shrunk,
    Runs,
}

/// Plays it and prints what happens.
pub(crate) fn demo() -> Result<()> {
    let programs = env::var_os("POLLUX_STATIC").map(PathBuf::from);
    let programs = programs.context("POLLUX_STATIC is not set; `make demo-kube` builds static programs and sets it")?;
    say("starting a cluster of 3 nodes with 4 made-up GPUs each")?;
    let cluster = Cluster::with_nodes(None, &vec![NodeSettings::default(); NODES])?;
    say("installing the operator by Helm, with two replicas")?;
    cluster.install_operator(&programs, "replicaCount=2,roundIntervalSeconds=5,graceSeconds=10")?;
    let plugin = cluster.folder().join("kubectl-pollux");
    symlink(programs.join("pollux"), &plugin)?;
    let played = Demo { cluster: &cluster, plugin, begun: Instant::now(), jobs: BTreeMap::new(), shown: Vec::new() };
    played.play()
}

struct Demo<'a> {
    cluster: &'a Cluster,
    plugin: PathBuf,
    begun: Instant,
    jobs: BTreeMap<&'static str, Seen>,
    shown: Vec<Moment>,
}

impl Demo<'_> {
    fn play(mut self) -> Result<()> {
        let (mut table_at, mut is_killed) = (Duration::ZERO, false);
        while self.jobs.len() < JOBS.len() || self.jobs.values().any(|job| job.ended.is_none()) {
            if self.begun.elapsed() > LIMIT {
                bail!("the trainings have not ended within {} s:\n{}", LIMIT.as_secs(), self.table()?);
            }
            self.submit_those_who_come()?;
            self.look()?;
            if self.begun.elapsed() >= table_at {
                self.print(&format!("$ kubectl get polluxjobs\n{}", self.table()?))?;
                table_at = self.begun.elapsed() + TABLE_EVERY;
            }
            if !is_killed && self.begun.elapsed() >= KILL_AT {
                is_killed = true;
                self.kill_leader()?;
            }
            sleep(LOOK);
        }
        self.sum_up()
    }

    fn submit_those_who_come(&mut self) -> Result<()> {
        for (name, arrival_s, pace, epochs, fewest) in JOBS {
            if self.jobs.contains_key(name) || self.begun.elapsed().as_secs() < arrival_s {
                continue;
            }
            let count = epochs.to_string();
            let mut job = self.cluster.training(name, &["--epochs", &count, "--samples", SAMPLES, "--pace", pace]);
            let spec =
                json!({"replicasMin": fewest, "replicas": fewest, "replicasMax": 12, "work": {"epochs": epochs}});
            for (field, value) in spec.as_object().into_iter().flatten() {
                job["spec"][field] = value.clone();
            }
            self.cluster.kubectl_with(&["create", "--filename=-"], &job)?;
            self.print(&format!("{name} is submitted: {epochs} epochs, {fewest} to 12 GPUs"))?;
            self.jobs.insert(name, Seen { submitted: Some(Instant::now()), ..Seen::default() });
        }
        Ok(())
    }

    /// Notes what has changed, and shows each kind of moment once.
    fn look(&mut self) -> Result<()> {
        // Whoever asks while the operator is killed may hear nothing.
        let Ok(found) = self.cluster.get(&["get", "polluxjobs", "--namespace", NAMESPACE]) else { return Ok(()) };
        let mut moments = Vec::new();
        for status in found["items"].as_array().into_iter().flatten() {
            let (name, status) = (&status["metadata"]["name"], &status["status"]);
            let Some((name, job)) = self.jobs.iter_mut().find(|(known, _)| *name == **known) else { continue };
            let gpus = status["gpus"].as_u64().unwrap_or_default();
            let phase = status["phase"].as_str().unwrap_or_default().to_owned();
            let is_shrunk = phase == "Running" && gpus < job.gpus;
            let moment = match phase.as_str() {
                "Queued" => Some(Moment::Waits),
                "Running" if is_shrunk => Some(Moment::Shrunk),
                "Running" if status["goodput"].is_number() => Some(Moment::Runs),
                _ => None,
            };
            moments.extend(moment.map(|moment| (moment, *name)));
            if phase == "Running" {
                job.changes += u32::from(job.gpus != gpus && job.gpus != 0);
                job.gpus = gpus;
            }
            job.gpus_max = job.gpus_max.max(gpus);
            job.restarts = status["restarts"].as_u64().unwrap_or_default();
            if ["Failed", "Cancelled", "Invalid"].contains(&phase.as_str()) {
                bail!("{name} has failed: {status}");
            }
            if phase == "Succeeded" && job.ended.is_none() {
                job.ended = Some(Instant::now());
            }
            job.phase = phase;
        }
        for (moment, name) in moments {
            if !self.shown.contains(&moment) {
                self.shown.push(moment);
                self.show(moment, name)?;
            }
        }
        Ok(())
    }

    fn show(&self, moment: Moment, name: &str) -> Result<()> {
        let what = match moment {
            Moment::Waits => "waits",
            Moment::Shrunk => "was shrunk",
            Moment::Runs => "runs",
        };
        let described = self.cluster.kubectl(&["describe", "polluxjob", name, "--namespace", NAMESPACE])?;
        let status = described.split_once("\nStatus:").map_or("", |(_, status)| status).trim_end();
        self.print(&format!("{name} {what}\n$ kubectl describe polluxjob {name}\nStatus:{status}"))?;
        let mut explain = Command::new(&self.plugin);
        explain.args(["explain", name, "--namespace", NAMESPACE]).env("KUBECONFIG", self.cluster.kubeconfig());
        let said = explain.env("NO_COLOR", "1").output()?;
        let text =
            String::from_utf8_lossy(if said.status.success() { &said.stdout } else { &said.stderr }).into_owned();
        self.print(&format!("$ kubectl pollux explain {name}\n{}", text.trim_end()))
    }

    fn table(&self) -> Result<String> {
        Ok(self.cluster.kubectl(&["get", "polluxjobs", "--namespace", NAMESPACE])?.trim_end().to_owned())
    }

    /// The pod that leads goes, and its disk with it; nobody who trains may notice.
    fn kill_leader(&self) -> Result<()> {
        let (leader, before) = (self.leader()?, self.containers()?);
        self.print(&format!("{leader}, the operator that leads, is deleted by force"))?;
        let killed = Instant::now();
        let delete = ["delete", "pod", &leader, "--namespace=pollux", "--force", "--grace-period=0"];
        self.cluster.kubectl(&delete)?;
        while self.leader().is_ok_and(|now| now == leader) {
            if killed.elapsed() > LIMIT {
                bail!("no other operator has taken over");
            }
            sleep(Duration::from_millis(200));
        }
        let took = killed.elapsed().as_secs_f64();
        let kept = self.containers()?.iter().filter(|container| before.contains(container)).count();
        self.print(&format!(
            "another one leads after {took:.1} s; {kept} of {} workers went on meanwhile",
            before.len()
        ))
    }

    fn leader(&self) -> Result<String> {
        let lease = self.cluster.get(&["get", "lease", "pollux", "--namespace=pollux"])?;
        Ok(lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
    }

    /// The containers of jobs that run.
    fn containers(&self) -> Result<Vec<String>> {
        let pods = self.cluster.get(&["get", "pods", "--namespace", NAMESPACE])?;
        let states = pods["items"].as_array().into_iter().flatten().map(|pod| &pod["status"]["containerStatuses"][0]);
        let running = states.filter(|state| !state["state"]["running"].is_null());
        Ok(running.filter_map(|state| Some(state["containerID"].as_str()?.to_owned())).collect())
    }

    fn sum_up(self) -> Result<()> {
        self.print(&format!("$ kubectl get polluxjobs\n{}", self.table()?))?;
        let mut out = io::stdout();
        writeln!(
            out,
            "\n{:<12} {:>8} {:>9} {:>8} {:>9} {:>7}",
            "", "time", "most GPUs", "resizes", "restarts", "epochs"
        )?;
        for (name, _, _, epochs, _) in JOBS {
            let job = &self.jobs[name];
            let took = job.submitted.zip(job.ended).map_or(0, |(from, to)| to.duration_since(from).as_secs());
            let audited = self.cluster.audited_epochs(name, SAMPLES)?;
            if audited != usize::try_from(epochs)? {
                bail!("{name} has trained {audited} of {epochs} epochs");
            }
            let (most, changes, restarts) = (job.gpus_max, job.changes, job.restarts);
            writeln!(out, "{name:<12} {took:>6} s {most:>9} {changes:>8} {restarts:>9} {audited:>7}")?;
        }
        let mut given = 0;
        for node in self.cluster.nodes()? {
            let record = node.gpu_record()?;
            given += record.pods().len();
            if !record.given_twice().is_empty() {
                bail!("{}: GPUs given to two at a time: {:?}", node.name(), record.given_twice());
            }
        }
        writeln!(
            out,
            "\nEvery epoch used each of its samples once. GPUs were given to {given} pods, none to two at a time."
        )?;
        Ok(())
    }

    fn print(&self, what: &str) -> Result<()> {
        say(&format!("\n[{:>3} s] {what}", self.begun.elapsed().as_secs()))
    }
}
