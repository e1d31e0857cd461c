//! `make bench`: what it takes a scheduler that so many workers wait for a change of their assignment.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pollux_client::JobAction;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

use crate::load::{Daemon, end_all, request};

/// As many as a large cluster has.
pub(crate) const WORKERS: usize = 10_000;
/// For everything to be connected, and to be told.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Until all waited, connected one after another.
    pub(crate) connected: Duration,
    /// Of the scheduler's memory, for each.
    pub(crate) kilobytes_each: f64,
    /// From the order that changed the assignment until the last had read it.
    pub(crate) announced: Duration,
}

/// Lets so many connections wait for the assignment of one job, and changes it.
pub(crate) fn measure(program: &Path, state: &Path, workers: usize) -> anyhow::Result<Cost> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let (daemon, _) = Daemon::start(program, state)?;
    let job = daemon.client.submit(&request("waiting", &["sleep", "600"]))?.id;
    let server = Server::find(state)?;
    let path = format!("/v1/jobs/{job}/assignment");
    let generation = until("the group", || {
        let answer = server.ask(&path)?;
        Ok(serde_json::from_str::<Value>(&answer).ok().and_then(|found| found["generation"].as_u64()))
    })?;

    let (before, began) = (daemon.resident_kb()?, Instant::now());
    let path = format!("{path}?after={generation}&wait_s=60");
    let mut waiting = (0..workers).map(|_| server.send(&path)).collect::<anyhow::Result<Vec<_>>>()?;
    until("that all wait", || Ok((server.waiting()? == workers).then_some(())))?;
    let connected = began.elapsed();
    let kilobytes_each = (daemon.resident_kb()? - before) / workers as f64;

    let began = Instant::now();
    daemon.client.act(job, JobAction::Pause)?;
    for worker in &mut waiting {
        let answer = read(worker)?;
        ensure!(answer.contains("\"stop\""), "a worker was told something else: {answer}");
    }
    let announced = began.elapsed();
    end_all(&daemon.client)?;
    daemon.kill(state)?;
    Ok(Cost { connected, kilobytes_each, announced })
}

/// Prints rows of a table.
pub(crate) fn print(cost: &Cost) {
    let row = |what: &str, measured: String, budget: &str| println!("  {what:<44} {measured:>12}   {budget}");
    row("10,000 workers hold long polls: memory each", format!("{:.1} kB", cost.kilobytes_each), "32 kB");
    row("connected one after another in", format!("{:.2} s", cost.connected.as_secs_f64()), "");
    row("all told of a new assignment in", format!("{:.0} ms", cost.announced.as_secs_f64() * 1e3), "1000 ms");
}

/// Where the scheduler is, and what opens it.
struct Server {
    address: String,
    token: String,
}

impl Server {
    fn find(state: &Path) -> anyhow::Result<Self> {
        let found: Value = serde_json::from_slice(&fs::read(state.join("server.json"))?)?;
        let url = found["url"].as_str().context("the address of the server")?;
        let token = fs::read_to_string(state.join("token"))?.trim().to_owned();
        Ok(Self { address: url.trim_start_matches("http://").to_owned(), token })
    }

    /// Asks, and leaves the answer to be read.
    fn send(&self, path: &str) -> anyhow::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let Self { address, token } = self;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n")?;
        Ok(stream)
    }

    fn ask(&self, path: &str) -> anyhow::Result<String> {
        read(&mut self.send(path)?)
    }

    fn waiting(&self) -> anyhow::Result<usize> {
        let metrics = self.ask("/metrics")?;
        let number = metrics.lines().find_map(|line| line.strip_prefix("pollux_waiting_workers "));
        Ok(number.context("how many wait")?.parse()?)
    }
}

/// The body of the next answer; the connection stays.
fn read(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        ensure!(reader.read_line(&mut line)? > 0, "the server hung up");
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(String::from_utf8(body)?)
}

fn until<T>(what: &str, mut look: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Some(found) = look()? {
            return Ok(found);
        }
        std::thread::sleep(LOOK);
    }
    bail!("{what}: not within {} s", PATIENCE.as_secs())
}
