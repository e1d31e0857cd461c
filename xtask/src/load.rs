//! `make bench`: what a live scheduler bears. A real `pollux up` of the release build, spoken to over loopback.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pollux_client::{Client, ClientError, Connection, EventQuery, JobAction, JobQuery};
use pollux_job::JobSpec;
use pollux_policy::JobId;
use pollux_store::{Batch, EndedJob, HistoryEntry, Store, SubmittedJob};

use crate::connections;

const FINISHED: u64 = 100_000;
const ACTIVE: usize = 1_000;
const SUBMISSIONS: usize = 4_000;
const WRITERS: usize = 32;
const READERS: usize = 4;
const READS: usize = 4_000;
const IDLE: Duration = Duration::from_secs(20);

/// A daemon of the release build on a state folder of its own.
pub(crate) struct Daemon {
    running: Running,
    pub(crate) client: Client,
}

/// A process that is killed with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended, and then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// Starts one, and tells how long it took until it answered.
    pub(crate) fn start(program: &Path, state: &Path) -> anyhow::Result<(Self, Duration)> {
        let began = Instant::now();
        let mut command = Command::new(program);
        command.arg("up").arg("--state").arg(state).args(["--listen", "127.0.0.1:0", "--slots", "1"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut running = Running(child);
        while began.elapsed() < Duration::from_secs(60) {
            let client = Connection::find(None, None, state).and_then(|connection| Client::new(&connection));
            if let Ok(client) = client
                && client.cluster().is_ok()
            {
                return Ok((Self { running, client }, began.elapsed()));
            }
            if let Some(status) = running.0.try_wait()? {
                bail!("pollux up ended: {status}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("pollux up does not answer")
    }

    pub(crate) fn kill(self, state: &Path) -> anyhow::Result<()> {
        drop(self);
        // Nobody is there any more; the next one has to say so itself.
        fs::remove_file(state.join("server.json")).context("the daemon's address")
    }

    /// Seconds of CPU used so far, by all of its threads.
    fn cpu_s(&self) -> anyhow::Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.running.0.id()))?;
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |idx: usize| fields.get(idx).and_then(|field| field.parse::<f64>().ok()).context("its CPU time");
        // Linux counts in hundredths of a second, wherever it is asked.
        Ok((ticks(11)? + ticks(12)?) / 100.0)
    }

    /// The most it ever had.
    fn memory_mb(&self) -> anyhow::Result<f64> {
        Ok(self.kilobytes("VmHWM:")? / 1000.0)
    }

    /// What it has now.
    pub(crate) fn resident_kb(&self) -> anyhow::Result<f64> {
        self.kilobytes("VmRSS:")
    }

    fn kilobytes(&self, which: &str) -> anyhow::Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.running.0.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(which)).context("its memory")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

/// Prints the table.
pub(crate) fn print(root: &Path) -> anyhow::Result<()> {
    let program = root.join("target/release/pollux");
    if !program.is_file() {
        println!("skipped: the live scheduler, because target/release/pollux is not built (`make build`)\n");
        return Ok(());
    }
    let folder = std::env::temp_dir().join(format!("pollux-bench-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let outcome = measure(&program, &folder);
    fs::remove_dir_all(&folder)?;
    outcome
}

fn measure(program: &Path, folder: &Path) -> anyhow::Result<()> {
    let state = folder.join("state");
    let raw = commits_per_s(folder)?;
    finish_jobs(program, &state)?;
    let (daemon, _) = Daemon::start(program, &state)?;
    let submissions = submit(&daemon.client)?;
    leave_active(&daemon.client)?;
    let mut reads = read(&daemon.client)?;
    let loaded_mb = daemon.memory_mb()?;
    daemon.kill(&state)?;
    let (daemon, start_up) = Daemon::start(program, &state)?;
    let before = daemon.cpu_s()?;
    std::thread::sleep(IDLE);
    let idle = (daemon.cpu_s()? - before) / IDLE.as_secs_f64();
    let memory_mb = daemon.memory_mb()?.max(loaded_mb);
    end_all(&daemon.client)?;
    daemon.kill(&state)?;
    let waiting = connections::measure(program, &folder.join("waiting"), connections::WORKERS)?;

    println!("live scheduler, {FINISHED} finished and {ACTIVE} active jobs");
    println!("  {:<44} {:>12}   budget", "", "measured");
    let row = |what: &str, measured: String, budget: &str| println!("  {what:<44} {measured:>12}   {budget}");
    row("durable submissions, 32 at a time", format!("{submissions:.0}/s"), "500/s");
    row("one by one on this disk, without a scheduler", format!("{raw:.0}/s"), "");
    row("the first as a multiple of the second", format!("{:.2}", submissions / raw), "");
    for (what, times) in &mut reads {
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        row(&format!("{what}: p50, p99"), format!("{:.1}, {:.1} ms", at(0.5), at(0.99)), "p99 100 ms");
    }
    row("start-up after a kill -9", format!("{:.2} s", start_up.as_secs_f64()), "2 s");
    row("CPU when idle", format!("{:.2}%", idle * 100.0), "1%");
    row("memory at most", format!("{memory_mb:.0} MB"), "200 MB");
    connections::print(&waiting);
    println!();
    Ok(())
}

/// What the disk allows whoever waits for each write: the yardstick for group commits.
fn commits_per_s(folder: &Path) -> anyhow::Result<f64> {
    let (mut store, _) = Store::open(&folder.join("yardstick"))?;
    let began = Instant::now();
    let mut commits = 0;
    while began.elapsed() < Duration::from_secs(2) {
        commits += 1;
        let submitted =
            SubmittedJob { id: JobId(commits), submitted: pollux_policy::Timestamp(0), spec: JobSpec::default() };
        store.commit(&Batch { submitted: vec![submitted], ..Batch::default() })?;
    }
    Ok(commits as f64 / began.elapsed().as_secs_f64())
}

/// Fills a state folder: lets one job run and end for real, and copies its rows.
pub(crate) fn finish_jobs(program: &Path, state: &Path) -> anyhow::Result<()> {
    let (daemon, _) = Daemon::start(program, state)?;
    let job = daemon.client.submit(&request("finished", &["true"]))?;
    while daemon.client.job(job.id)?.job.ended_ms.is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    daemon.kill(state)?;
    let (mut store, _) = Store::open(state)?;
    let reader = store.reader()?;
    let row = reader.job(JobId(job.id))?.context("the job that ended")?;
    let ended = row.ended.context("its end")?;
    let history = reader.history(0, Some(JobId(job.id)), 100)?.into_iter();
    let history: Vec<_> = history.filter_map(|line| Some((line.sequence, line.at, line.event.ok()?))).collect();
    let mut sequence = history.last().map_or(0, |(sequence, ..)| *sequence) + 1_000;
    for first in (job.id + 1..=FINISHED).step_by(1_000) {
        let mut batch = Batch::default();
        for id in (first..(first + 1_000).min(FINISHED + 1)).map(JobId) {
            batch.submitted.push(SubmittedJob { id, ..row.submitted.clone() });
            batch.ended.push(EndedJob { id, ..ended.clone() });
            for (_, at, event) in &history {
                sequence += 1;
                batch.history.push(HistoryEntry { sequence, at: *at, job: Some(id), event: event.clone() });
            }
        }
        store.commit(&batch)?;
    }
    Ok(())
}

fn submit(client: &Client) -> anyhow::Result<f64> {
    let began = Instant::now();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let submit = || -> anyhow::Result<()> {
            while next.fetch_add(1, Ordering::Relaxed) < SUBMISSIONS {
                client.submit(&request("active", &["sleep", "600"]))?;
            }
            Ok(())
        };
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(submit)).collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer panicked"))
    })?;
    Ok(SUBMISSIONS as f64 / began.elapsed().as_secs_f64())
}

/// Cancels every job, and waits until what ran for them is gone: it would outlive the daemon.
pub(crate) fn end_all(client: &Client) -> anyhow::Result<()> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        let jobs = client.jobs(JobQuery { limit: Some(1_000), ..JobQuery::default() })?.jobs;
        let live: Vec<u64> = jobs.iter().filter(|job| job.ended_ms.is_none()).map(|job| job.id).collect();
        if live.is_empty() {
            return Ok(());
        }
        for job in live {
            match client.act(job, JobAction::Cancel) {
                // It may have been cancelled before, or be over by now.
                Ok(()) | Err(ClientError::Refused { status: 409, .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    bail!("jobs that were cancelled do not end")
}

fn leave_active(client: &Client) -> anyhow::Result<()> {
    let last = FINISHED + SUBMISSIONS as u64;
    for id in FINISHED + ACTIVE as u64 + 1..=last {
        client.act(id, JobAction::Cancel)?;
    }
    Ok(())
}

/// How long each kind of question took.
fn read(client: &Client) -> anyhow::Result<Vec<(&'static str, Vec<Duration>)>> {
    type Question<'a> = (&'static str, &'a (dyn Fn(u64) -> Result<(), ClientError> + Sync));
    let list = |_| client.jobs(JobQuery { limit: Some(100), ..JobQuery::default() }).map(drop);
    let page = |idx: u64| {
        let before = Some(idx * 7_919 % FINISHED + 1);
        client.jobs(JobQuery { limit: Some(100), before, ..JobQuery::default() }).map(drop)
    };
    let one = |idx: u64| client.job(idx * 7_919 % FINISHED + 1).map(drop);
    let active = |idx: u64| client.explanation(FINISHED + idx % ACTIVE as u64 + 1).map(drop);
    let cluster = |_| client.cluster().map(drop);
    let events = |idx: u64| {
        let job = Some(idx * 7_919 % FINISHED + 1);
        client.events(EventQuery { after: 0, job, limit: Some(100) }).map(drop)
    };
    let questions: [Question<'_>; 6] = [
        ("GET jobs, live and newest", &list),
        ("GET jobs, 100 finished", &page),
        ("GET a finished job", &one),
        ("GET an explanation", &active),
        ("GET cluster", &cluster),
        ("GET events of a job", &events),
    ];
    let next = AtomicUsize::new(0);
    let answers = std::thread::scope(|scope| {
        let ask = || -> anyhow::Result<Vec<(usize, Duration)>> {
            let mut times = Vec::new();
            loop {
                let idx = next.fetch_add(1, Ordering::Relaxed);
                if idx >= READS {
                    return Ok(times);
                }
                let (which, began) = (idx % questions.len(), Instant::now());
                questions[which].1(idx as u64)?;
                times.push((which, began.elapsed()));
            }
        };
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(ask)).collect();
        readers.into_iter().map(|reader| reader.join().expect("a reader panicked")).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let mut times: Vec<(&'static str, Vec<Duration>)> = questions.iter().map(|&(what, _)| (what, Vec::new())).collect();
    for (which, time) in answers.into_iter().flatten() {
        times[which].1.push(time);
    }
    Ok(times)
}

pub(crate) fn request(name: &str, command: &[&str]) -> JobSpec {
    let command = command.iter().map(|&word| word.to_owned()).collect();
    JobSpec { command, working_dir: "/".into(), ..JobSpec::new(name, 1) }
}
