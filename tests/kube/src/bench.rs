//! What one operator bears: nodes and jobs that KWOK plays, and what operator and API server make of them, beside budgets.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use futures_util::{StreamExt, stream};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use pollux_testbed::{Cluster, NAMESPACE, NodeSettings};
use serde_json::{Value, json};

use crate::say;

const GPUS_PER_NODE: u32 = 8;
/// Those of jobs, in turn: together they ask for more than there is.
const GPUS: [u32; 4] = [2, 4, 8, 8];
/// Requests at a time, as of so many users.
const USERS: usize = 16;
/// Jobs that are submitted while no operator runs, for comparison.
const CONTROL: usize = 500;
/// How long is looked at while nothing changes.
const IDLE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(400);
const OPERATOR: &str = "operator";
const TICKS_PER_S: f64 = 100.0;

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// The `pollux` program to measure
    #[arg(long, value_name = "FILE")]
    operator: PathBuf,
    /// How many nodes of eight GPUs there are
    #[arg(long, default_value_t = 1_000)]
    nodes: u32,
    /// How many jobs are submitted
    #[arg(long, default_value_t = 2_000)]
    jobs: usize,
}

/// Measures and prints a table.
pub(crate) fn bench(args: &BenchArgs) -> Result<()> {
    let cluster = Cluster::without_nodes(None)?;
    say(&format!("{} nodes of {GPUS_PER_NODE} GPUs", args.nodes))?;
    cluster.add_fake_nodes(args.nodes, &NodeSettings { gpus: GPUS_PER_NODE, ..NodeSettings::default() })?;
    let mut bench = Bench::prepare(args, &cluster)?;

    let (control_per_s, _) = bench.submit("control", 0..CONTROL, true)?;
    cluster.kubectl(&["delete", "polluxjobs", "--all", "--namespace", NAMESPACE, "--wait=false"])?;
    bench.start()?;
    bench.await_metric("the operator schedules", |text| metric(text, "pollux_rounds_total").filter(|it| *it > 0.0))?;
    let before = bench.writes()?;
    let begun = Instant::now();
    let (submissions_per_s, cpus) = bench.submit("job", 0..args.jobs, false)?;
    say(&shares(&cpus))?;
    bench.await_metric("all jobs are taken", |text| (live_jobs(text) >= args.jobs as f64).then_some(0.0))?;
    let taken_per_s = args.jobs as f64 / begun.elapsed().as_secs_f64();
    let wanted = f64::from((args.nodes * GPUS_PER_NODE).min(asked(args.jobs))) * 0.99;
    let running = |text: &str| metric(text, "pollux_gpus_held").filter(|held| *held >= wanted);
    bench.await_metric("GPUs are given", running)?;
    let all_given_s = begun.elapsed().as_secs_f64();
    let settled = bench.await_quiet()?;
    say(&format!("GPUs are given after {all_given_s:.0} s; writes of the operator:"))?;
    let made = counted(&settled[before.len()..]);
    say(&made.iter().map(|(what, count)| format!("  {count:>6} {what}")).collect::<Vec<_>>().join("\n"))?;
    sleep(IDLE);
    let idle = bench.writes()?.split_off(settled.len());

    let text = bench.metrics()?;
    let (sum, count) = (metric(&text, "pollux_plan_seconds_sum"), metric(&text, "pollux_plan_seconds_count"));
    let (sum, count) = (sum.context("no pollux_plan_seconds_sum")?, count.context("no pollux_plan_seconds_count")?);
    let (longest_s, memory_mb) = (longest(&text, count), bench.memory_mb()?);
    cluster.kill_program(OPERATOR)?;
    let killed = Instant::now();
    bench.start()?;
    bench.await_metric("it plans again", |text| metric(text, "pollux_rounds_total").filter(|it| *it > 0.0))?;
    let restart_s = killed.elapsed().as_secs_f64();

    let submissions = made.values().sum::<usize>() as f64 / args.jobs as f64;
    let leases = idle.iter().filter(|what| what.ends_with(" leases")).count();
    let rows = [
        ("planning rounds, mean", format!("{:.3} s of {count:.0}", sum / count), String::new(), true),
        ("planning rounds, longest", format!("up to {longest_s} s"), "1 s".to_owned(), longest_s <= 1.0),
        ("memory, at most", format!("{memory_mb:.0} MB"), "500 MB".to_owned(), memory_mb < 500.0),
        (
            "submissions acknowledged",
            format!("{submissions_per_s:.0}/s"),
            "100/s".to_owned(),
            submissions_per_s >= 100.0,
        ),
        ("the same without an operator", format!("{control_per_s:.0}/s"), String::new(), true),
        ("jobs taken by the operator", format!("{taken_per_s:.0}/s"), String::new(), true),
        ("writes for a job until it trains or waits", format!("{submissions:.1}"), "12".to_owned(), submissions < 12.0),
        (
            "writes in 30 s in which nothing changes",
            format!("{} and {leases} of the lease", idle.len() - leases),
            "60".to_owned(),
            idle.len() - leases <= 60,
        ),
        ("killed to first plan", format!("{restart_s:.1} s"), "10 s".to_owned(), restart_s < 10.0),
    ];
    say(&format!(
        "\n| {} nodes of {GPUS_PER_NODE} GPUs, {} jobs | measured | budget |\n| --- | ---: | ---: |",
        args.nodes, args.jobs
    ))?;
    for (what, measured, budget, is_held) in &rows {
        say(&format!("| {what} | {measured} | {budget}{} |", if *is_held { "" } else { " (missed)" }))?;
    }
    Ok(())
}

/// GPUs that so many jobs ask for.
fn asked(jobs: usize) -> u32 {
    (0..jobs).map(|index| GPUS[index % GPUS.len()]).sum()
}

struct Bench<'a> {
    cluster: &'a Cluster,
    operator: &'a Path,
    runtime: tokio::runtime::Runtime,
    client: Client,
    pod: String,
    port: u16,
    monitor: String,
    pid: u32,
}

impl<'a> Bench<'a> {
    /// Installs the chart, whose pods find no node: the operator runs outside of the cluster, with the token of one.
    fn prepare(args: &'a BenchArgs, cluster: &'a Cluster) -> Result<Self> {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/pollux");
        let mut helm = cluster.command("helm");
        helm.args(["install", "--create-namespace", "--namespace=pollux", "pollux"]).arg(chart);
        if !helm.output()?.status.success() {
            bail!("the chart cannot be installed");
        }
        cluster.kubectl(&["create", "namespace", NAMESPACE])?;
        let pods = ["get", "pods", "--namespace=pollux"];
        let first = || Ok(cluster.get(&pods)?["items"][0]["metadata"]["name"].as_str().map(str::to_owned));
        let pod = pollux_testbed::wait_for("a pod of the operator", LIMIT, first)?;
        let bound = ["--bound-object-kind=Pod", "--bound-object-name", &pod, "--duration=4h"];
        let token = cluster.kubectl(&[&["create", "token", "pollux", "--namespace=pollux"], &bound[..]].concat())?;
        let mut access: Value =
            serde_json::from_str(&cluster.kubectl(&["config", "view", "--raw", "--output=json"])?)?;
        access["users"][0]["user"] = json!({"token": token.trim()});
        fs::write(cluster.folder().join("operator.kubeconfig"), access.to_string())?;
        cluster.kubectl(&["create", "serviceaccount", "monitor", "--namespace=pollux"])?;
        let may = ["create", "clusterrole", "monitor", "--verb=get", "--non-resource-url=/metrics"];
        cluster.kubectl(&may)?;
        let binding = ["--clusterrole=monitor", "--serviceaccount=pollux:monitor"];
        cluster.kubectl(&[&["create", "clusterrolebinding", "monitor"], &binding[..]].concat())?;
        let monitor = cluster.kubectl(&["create", "token", "monitor", "--namespace=pollux", "--duration=4h"])?;

        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let client = runtime.block_on(async {
            let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig())?;
            let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
            Ok::<_, anyhow::Error>(Client::try_from(config)?)
        })?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (operator, monitor) = (args.operator.as_path(), monitor.trim().to_owned());
        Ok(Self { cluster, operator, runtime, client, pod, port, monitor, pid: 0 })
    }

    fn start(&mut self) -> Result<()> {
        let state = self.cluster.folder().join("operator-state");
        // Its disk is a cache.
        let _ = fs::remove_dir_all(&state);
        let mut command = Command::new(self.operator);
        command.env("KUBECONFIG", self.cluster.folder().join("operator.kubeconfig"));
        command.args(["operator", "--namespace=pollux", "--identity", &self.pod, "--host=pollux.pollux.svc"]);
        command.args(["--image=pollux.test/pollux:1", "--round-interval=10", "--state"]).arg(state);
        command.arg(format!("--listen=127.0.0.1:{}", self.port));
        self.pid = self.cluster.start_program(OPERATOR, &mut command)?;
        Ok(())
    }

    /// Submits jobs as users do; how many were acknowledged in a second, and what everybody's processor time was.
    fn submit(
        &self,
        prefix: &str,
        jobs: std::ops::Range<usize>,
        is_suspended: bool,
    ) -> Result<(f64, BTreeMap<String, f64>)> {
        let count = jobs.len() as f64;
        let (before, begun) = (self.cpu_s(), Instant::now());
        let create = |index: usize| {
            let body = job(&format!("{prefix}-{index}"), GPUS[index % GPUS.len()], is_suspended).to_string();
            let client = self.client.clone();
            async move {
                let path = format!("/apis/pollux.dev/v1alpha1/namespaces/{NAMESPACE}/polluxjobs");
                let request = http::Request::post(path).header("content-type", "application/json");
                client.request::<Value>(request.body(body.into_bytes())?).await?;
                Ok::<_, anyhow::Error>(())
            }
        };
        let outcomes: Vec<Result<()>> =
            self.runtime.block_on(stream::iter(jobs.map(create)).buffer_unordered(USERS).collect());
        let took_s = begun.elapsed().as_secs_f64();
        outcomes.into_iter().collect::<Result<()>>()?;
        let cpus = self.cpu_s().into_iter().map(|(name, after)| {
            let used = after - before.get(&name).copied().unwrap_or_default();
            (name, used / took_s)
        });
        Ok((count / took_s, cpus.collect()))
    }

    /// Processor seconds of every program of the cluster, of the operator and of this one.
    fn cpu_s(&self) -> BTreeMap<String, f64> {
        let mut pids = BTreeMap::from([("this program".to_owned(), std::process::id())]);
        if self.pid != 0 {
            pids.insert(OPERATOR.to_owned(), self.pid);
        }
        let folder = self.cluster.folder().join("control-plane");
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(name) = name.strip_suffix(".pid") else { continue };
            let process: Value =
                fs::read(entry.path()).ok().and_then(|it| serde_json::from_slice(&it).ok()).unwrap_or_default();
            pids.extend(process["pid"].as_u64().and_then(|pid| Some((name.to_owned(), u32::try_from(pid).ok()?))));
        }
        let used = |pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
            Some((fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?) / TICKS_PER_S)
        };
        pids.into_iter().filter_map(|(name, pid)| Some((name, used(pid)?))).collect()
    }

    fn memory_mb(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0 / 1e6)
    }

    fn metrics(&self) -> Result<String> {
        let authority =
            ["get", "secret", "pollux-authority", "--namespace=pollux", "--output=jsonpath={.data.ca\\.crt}"];
        let mut decode = Command::new("base64");
        let encoded = self.cluster.folder().join("ca.base64");
        fs::write(&encoded, self.cluster.kubectl(&authority)?)?;
        let certificate = decode.arg("--decode").arg(&encoded).output()?.stdout;
        let file = self.cluster.folder().join("ca.crt");
        fs::write(&file, certificate)?;
        let (host, port) = ("pollux.pollux.svc", self.port);
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "20", "--cacert"]).arg(file);
        curl.args(["--resolve", &format!("{host}:{port}:127.0.0.1")]);
        curl.args(["--header", &format!("Authorization: Bearer {}", self.monitor)]);
        let output = curl.arg(format!("https://{host}:{port}/metrics")).output()?;
        if !output.status.success() {
            bail!("curl: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn await_metric(&self, what: &str, so: impl Fn(&str) -> Option<f64>) -> Result<f64> {
        let end = Instant::now() + LIMIT;
        loop {
            let last = match self.metrics() {
                Ok(text) => match so(&text) {
                    Some(value) => return Ok(value),
                    None => format!("{:.0} jobs, {:?} GPUs held", live_jobs(&text), metric(&text, "pollux_gpus_held")),
                },
                Err(error) => error.to_string(),
            };
            if Instant::now() > end {
                bail!("{what}: not within {} s: {last}", LIMIT.as_secs());
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// What the operator has written so far, as verb and resource.
    fn writes(&self) -> Result<Vec<String>> {
        let writes = self.cluster.writes()?.into_iter().filter(|write| write.pod == self.pod && write.is_done());
        Ok(writes.map(|write| format!("{} {}", write.verb, write.resource)).collect())
    }

    /// Waits until little more is written than a lease; all writes until then.
    fn await_quiet(&self) -> Result<Vec<String>> {
        let (end, mut before) = (Instant::now() + LIMIT, self.writes()?.len());
        loop {
            sleep(Duration::from_secs(10));
            let writes = self.writes()?;
            if writes.len() < before + 30 || Instant::now() > end {
                return Ok(writes);
            }
            before = writes.len();
        }
    }
}

fn job(name: &str, gpus: u32, is_suspended: bool) -> Value {
    let container = json!({"name": "main", "image": "pollux.test/trainer:1", "command": ["/bin/trainer"]});
    let tolerations = json!([{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]);
    json!({
        "apiVersion": "pollux.dev/v1alpha1", "kind": "PolluxJob", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "gpusPerReplica": gpus, "replicasMax": 1, "work": {"epochs": 10}, "suspend": is_suspended,
            "template": {"spec": {"tolerations": tolerations, "containers": [container]}},
        },
    })
}

fn counted(writes: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for write in writes {
        *counts.entry(write.as_str()).or_default() += 1;
    }
    counts
}

/// A figure without labels.
fn metric(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn live_jobs(text: &str) -> f64 {
    let figures = text.lines().filter(|line| line.starts_with("pollux_jobs{"));
    figures.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// The bound below which all plans were.
fn longest(text: &str, count: f64) -> f64 {
    let buckets =
        text.lines().filter_map(|line| line.strip_prefix("pollux_plan_seconds_bucket{le=\"")?.split_once("\"} "));
    let mut bounds = buckets.filter_map(|(bound, seen)| Some((bound.parse::<f64>().ok()?, seen.parse::<f64>().ok()?)));
    bounds.find(|(_, seen)| *seen >= count).map_or(f64::INFINITY, |(bound, _)| bound)
}

fn shares(cpus: &BTreeMap<String, f64>) -> String {
    let mut shares: Vec<(&String, &f64)> = cpus.iter().collect();
    shares.sort_by(|a, b| b.1.total_cmp(a.1));
    let all: f64 = cpus.values().sum();
    let each =
        shares.into_iter().filter(|(_, share)| **share >= 0.005).map(|(name, share)| format!("{name} {share:.2}"));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("cores used while jobs were submitted, {all:.2} of {cores}: {}", each.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_what_prometheus_reads() {
        let text = "pollux_jobs{phase=\"running\"} 3\npollux_jobs{phase=\"queued\"} 4\npollux_rounds_total 2\n\
                    pollux_plan_seconds_bucket{le=\"0.05\"} 1\npollux_plan_seconds_bucket{le=\"0.1\"} 2\n\
                    pollux_plan_seconds_bucket{le=\"+Inf\"} 2\n";
        assert_eq!((live_jobs(text), metric(text, "pollux_rounds_total"), longest(text, 2.0)), (7.0, Some(2.0), 0.1));
        assert_eq!(metric(text, "pollux_rounds"), None);
    }
}
