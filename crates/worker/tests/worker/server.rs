//! A server that answers as it is told to and remembers what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use pollux_worker::{
    AssignedReplica, Assignment, AssignmentState, BatchMode, Connection, GpuTypeName, Rendezvous, Token,
};

/// What the server does with a request.
pub(crate) enum Answer {
    /// Sends these bytes and hangs up.
    Raw(Vec<u8>),
    /// Hangs up.
    Hangup,
    /// Says nothing, and keeps the line open.
    Silence,
}

impl Answer {
    pub(crate) fn status(status: u16) -> Self {
        Self::Raw(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes())
    }

    pub(crate) fn json(status: u16, text: &str) -> Self {
        let length = text.len();
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        Self::Raw((head + text).into_bytes())
    }
}

/// What it was asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: String,
}

impl Request {
    /// What follows `/v1/jobs/{id}/`, without the query.
    pub(crate) fn path(&self) -> &str {
        let target = self.line.split(' ').nth(1).unwrap();
        target.split('/').nth(4).unwrap().split('?').next().unwrap()
    }

    pub(crate) fn after(&self) -> u64 {
        let after = self.line.split("after=").nth(1).unwrap();
        after.split('&').next().unwrap().parse().unwrap()
    }

    pub(crate) fn waits(&self) -> bool {
        !self.line.contains("wait_s=0 ")
    }
}

type Behaviour = Box<dyn Fn(&Request) -> Answer + Send + Sync>;

struct State {
    behaviour: Mutex<Arc<Behaviour>>,
    requests: Mutex<Vec<Request>>,
    silent: Mutex<Vec<TcpStream>>,
    closed: AtomicBool,
}

/// It ends when it is dropped.
pub(crate) struct Server {
    port: u16,
    state: Arc<State>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    pub(crate) fn new(behaviour: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        Self::on(0, behaviour)
    }

    pub(crate) fn on(port: u16, behaviour: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            behaviour: Mutex::new(Arc::new(Box::new(behaviour))),
            requests: Mutex::default(),
            silent: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let serving = Arc::clone(&state);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.closed.load(Ordering::SeqCst) {
                    return;
                }
                let state = Arc::clone(&serving);
                thread::spawn(move || serve(stream.unwrap(), &state));
            }
        });
        Self { port, state, thread: Some(thread) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn answer(&self, behaviour: impl Fn(&Request) -> Answer + Send + Sync + 'static) {
        *self.state.behaviour.lock().unwrap() = Arc::new(Box::new(behaviour));
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }

    pub(crate) fn posts(&self) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.line.starts_with("POST ")).collect()
    }

    pub(crate) fn clear(&self) {
        self.state.requests.lock().unwrap().clear();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::SeqCst);
        // It wakes up when somebody calls; then its port is free.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(stream: TcpStream, state: &State) {
    // A worker that is gone is nobody to answer.
    let Some(request) = read(&stream) else { return };
    state.requests.lock().unwrap().push(request.clone());
    let behaviour = Arc::clone(&state.behaviour.lock().unwrap());
    match behaviour(&request) {
        Answer::Raw(bytes) => {
            let _ = (&stream).write_all(&bytes);
        }
        Answer::Hangup => {}
        Answer::Silence => state.silent.lock().unwrap().push(stream),
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut reader = BufReader::new(stream);
    let mut request = Request::default();
    reader.read_line(&mut request.line).ok().filter(|&length| length > 0)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.authorization = Some(value.to_owned()),
            "content-length" => length = value.parse().unwrap(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8(body).unwrap();
    Some(request)
}

pub(crate) fn connection(port: u16) -> Connection {
    Connection {
        url: format!("http://127.0.0.1:{port}"),
        job: "12".to_owned(),
        replica: 7,
        token: Token::Given("secret".to_owned()),
        generation: 1,
        host: "127.0.0.1".to_owned(),
        authority: None,
    }
}

/// All replicas on one node.
pub(crate) fn assignment(generation: u64, replicas: &[u64]) -> Assignment {
    let count = replicas.len() as u32;
    let replicas = replicas.iter().zip(0..).map(|(&replica, rank)| AssignedReplica {
        replica,
        rank,
        node: "local-0".to_owned(),
        local_rank: rank,
        local_world_size: count,
        gpu_type: GpuTypeName::default(),
    });
    Assignment {
        generation,
        epoch: None,
        state: AssignmentState::Run,
        rendezvous: Rendezvous::Given,
        batch: BatchMode::Adaptive,
        shares_gpus: false,
        key: None,
        master_address: "127.0.0.1".to_owned(),
        master_port: 4711,
        replicas: replicas.collect(),
    }
}

pub(crate) fn stop(generation: u64) -> Assignment {
    Assignment { state: AssignmentState::Stop, ..assignment(generation, &[]) }
}
