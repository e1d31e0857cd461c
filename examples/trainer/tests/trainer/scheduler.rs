//! The worker's part of the REST interface, and a job whose group changes as a test says.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pollux_api::{
    AssignedReplica, Assignment, AssignmentState, Endpoint, ReadyRequest, Rendezvous, RendezvousRequest, ReportRequest,
};
use pollux_model::{BatchMode, GpuTypeName};

use crate::processes::{Folder, PATIENCE, Trainer};

const TOKEN: &str = "secret";

#[derive(Default)]
struct Heard {
    assignment: Option<Assignment>,
    ready: Vec<ReadyRequest>,
    reports: Vec<ReportRequest>,
    closed: bool,
}

type State = (Mutex<Heard>, Condvar);

/// A scheduler that does what it is told; gone when dropped.
pub(crate) struct Scheduler {
    port: u16,
    state: Arc<State>,
}

impl Scheduler {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state: Arc<State> = Arc::default();
        let serving = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.0.lock().unwrap().closed {
                    return;
                }
                let state = Arc::clone(&serving);
                // A worker that hangs up in the middle is nobody to answer.
                thread::spawn(move || serve(&stream.unwrap(), &state));
            }
        });
        Self { port, state }
    }

    fn assign(&self, assignment: Assignment) {
        self.state.0.lock().unwrap().assignment = Some(assignment);
        self.state.1.notify_all();
    }

    fn ready(&self, generation: u64) -> Option<ReadyRequest> {
        self.state.0.lock().unwrap().ready.iter().find(|ready| ready.generation == generation).copied()
    }

    pub(crate) fn last_report(&self) -> Option<ReportRequest> {
        self.state.0.lock().unwrap().reports.last().cloned()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.state.0.lock().unwrap().closed = true;
        self.state.1.notify_all();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(stream: &TcpStream, state: &State) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let (mut length, mut authorized) = (0, false);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => authorized = value == format!("Bearer {TOKEN}"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (status, answer) = if authorized { answer(&line, &body, state)? } else { (401, String::new()) };
    let length = answer.len();
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    (&*stream).write_all((head + &answer).as_bytes()).ok()
}

/// `None` to hang up.
fn answer(line: &str, body: &[u8], (heard, changed): &State) -> Option<(u16, String)> {
    let target = line.split(' ').nth(1).unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = path.strip_prefix("/v1/jobs/12/").unwrap();
    let mut heard = heard.lock().unwrap();
    if path == "assignment" {
        let (after, wait_s) = query.strip_prefix("after=").unwrap().split_once("&wait_s=").unwrap();
        let (after, wants_rendezvous) = match after.strip_suffix("&rendezvous=true") {
            Some(after) => (after, true),
            None => (after, false),
        };
        let after: u64 = after.parse().unwrap();
        let deadline = Instant::now() + Duration::from_secs(wait_s.parse().unwrap());
        loop {
            if heard.closed {
                return None;
            }
            let assignment = heard.assignment.as_ref().unwrap();
            let left = deadline.saturating_duration_since(Instant::now());
            let meets = wants_rendezvous && matches!(assignment.rendezvous, Rendezvous::At(_));
            let news = assignment.generation > after || assignment.state == AssignmentState::Stop || meets;
            if news || left.is_zero() {
                return Some((200, serde_json::to_string(assignment).unwrap()));
            }
            heard = changed.wait_timeout(heard, left).unwrap().0;
        }
    }
    let generation = heard.assignment.as_ref().unwrap().generation;
    let settled = heard.ready.last().map_or(0, |ready| ready.generation);
    let spoken = match path {
        "ready" => {
            let ready: ReadyRequest = serde_json::from_slice(body).unwrap();
            heard.ready.push(ready);
            ready.generation
        }
        "reports" => {
            let report: ReportRequest = serde_json::from_slice(body).unwrap();
            let generation = report.generation;
            heard.reports.push(report);
            generation
        }
        "rendezvous" => {
            let RendezvousRequest { generation, address, port } = serde_json::from_slice(body).unwrap();
            let assignment = heard.assignment.as_mut().unwrap();
            if generation == assignment.generation {
                assignment.rendezvous = Rendezvous::At(Endpoint { address, port });
                changed.notify_all();
            }
            return Some((if generation == assignment.generation { 204 } else { 409 }, String::new()));
        }
        other => panic!("{other} is no path of a worker"),
    };
    let current = (settled..=generation).contains(&spoken);
    Some((if current { 204 } else { 409 }, String::new()))
}

/// A job of real processes.
pub(crate) struct Job {
    pub(crate) scheduler: Scheduler,
    pub(crate) folder: Folder,
    arguments: Vec<String>,
    pub(crate) replicas: BTreeMap<u64, Trainer>,
    /// The group by rank.
    pub(crate) group: Vec<u64>,
    pub(crate) generation: u64,
    next_replica: u64,
    pub(crate) batch: BatchMode,
}

impl Job {
    pub(crate) fn new(folder: Folder, arguments: &[&str]) -> Self {
        let mut job = Self {
            scheduler: Scheduler::new(),
            folder,
            arguments: Vec::new(),
            replicas: BTreeMap::new(),
            group: Vec::new(),
            generation: 0,
            next_replica: 17,
            batch: BatchMode::Adaptive,
        };
        job.set_arguments(arguments);
        job
    }

    pub(crate) fn set_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    }

    /// Starts a group afresh and waits until it trains.
    pub(crate) fn launch(&mut self, count: usize) {
        self.group.clear();
        self.change(&[], count);
        assert_eq!(self.wait_ready().pause_s, None, "a group that starts afresh has nothing to compare with");
    }

    /// Removes and adds replicas, waits until the new group trains, and returns its pause in seconds.
    pub(crate) fn resize(&mut self, remove: &[u64], add: usize) -> f64 {
        self.change(remove, add);
        for replica in remove {
            assert_eq!(self.replicas.remove(replica).unwrap().wait(), Some(143), "a removed replica");
        }
        self.wait_ready().pause_s.expect("survivors measure their pause")
    }

    /// Announces a new generation, tells the removed to leave and starts the added.
    pub(crate) fn change(&mut self, remove: &[u64], add: usize) {
        let added: Vec<u64> = (self.next_replica..).take(add).collect();
        self.next_replica += add as u64;
        self.group.retain(|replica| !remove.contains(replica));
        self.group.extend(&added);
        self.generation += 1;
        self.scheduler.assign(self.assignment(AssignmentState::Run));
        remove.iter().for_each(|replica| self.replicas[replica].signal("TERM"));
        for replica in added {
            let trainer = self.start(replica);
            self.replicas.insert(replica, trainer);
        }
    }

    fn start(&self, replica: u64) -> Trainer {
        let assignment = self.assignment(AssignmentState::Run);
        let place = assignment.replicas.iter().find(|assigned| assigned.replica == replica).unwrap();
        let variables = [
            ("RANK", place.rank.to_string()),
            ("LOCAL_RANK", place.local_rank.to_string()),
            ("WORLD_SIZE", assignment.replicas.len().to_string()),
            ("LOCAL_WORLD_SIZE", place.local_world_size.to_string()),
            ("MASTER_ADDR", assignment.master_address.clone()),
            ("MASTER_PORT", assignment.master_port.to_string()),
            ("POLLUX_URL", format!("http://127.0.0.1:{}", self.scheduler.port)),
            ("POLLUX_JOB_ID", "12".to_owned()),
            ("POLLUX_REPLICA_ID", replica.to_string()),
            ("POLLUX_TOKEN", TOKEN.to_owned()),
            ("POLLUX_GENERATION", assignment.generation.to_string()),
            ("POLLUX_CHECKPOINT_DIR", self.folder.path("checkpoints")),
        ];
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        Trainer::start(&self.folder, &replica.to_string(), &arguments, &variables)
    }

    /// Waits until the newest generation is ready.
    pub(crate) fn wait_ready(&mut self) -> ReadyRequest {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(ready) = self.scheduler.ready(self.generation) {
                return ready;
            }
            // One that is done already may still be telling that it was ready.
            let failed = self.replicas.values_mut().any(|trainer| trainer.ended().is_some_and(|code| code != Some(0)));
            assert!(!failed, "generation {} ended early: {}", self.generation, self.folder.logs());
            assert!(Instant::now() < deadline, "generation {} never trained: {}", self.generation, self.folder.logs());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Tells the whole group to stop; all of it must leave as wanted.
    pub(crate) fn stop(&mut self) {
        self.scheduler.assign(self.assignment(AssignmentState::Stop));
        self.replicas.values().for_each(|trainer| trainer.signal("TERM"));
        self.expect_exits(143);
    }

    /// Waits for the whole group to end.
    pub(crate) fn expect_exits(&mut self, code: i32) {
        for (replica, mut trainer) in std::mem::take(&mut self.replicas) {
            assert_eq!(trainer.wait(), Some(code), "{replica}: {}", self.folder.logs());
        }
        self.group.clear();
    }

    fn assignment(&self, state: AssignmentState) -> Assignment {
        let world_size = self.group.len() as u32;
        let replicas = self.group.iter().zip(0..).map(|(&replica, rank)| AssignedReplica {
            replica,
            rank,
            node: "local-0".to_owned(),
            local_rank: rank,
            local_world_size: world_size,
            gpu_type: GpuTypeName::new("t4").unwrap(),
        });
        Assignment {
            generation: self.generation,
            epoch: None,
            state,
            rendezvous: Rendezvous::Awaited,
            // Nobody can listen there: who tries does not speak the protocol.
            master_address: "192.0.2.1".to_owned(),
            master_port: 9,
            batch: self.batch,
            shares_gpus: false,
            key: None,
            replicas: replicas.collect(),
        }
    }
}
