//! A scheduler's interface with recorded answers, which remembers what it was asked.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::binary::{Run, fresh_folder, pollux, run};

/// What it was asked: method, path with query, and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) authorization: String,
    pub(crate) body: String,
}

type Answers = Arc<dyn Fn(&str) -> (u16, String) + Send + Sync>;

/// It answers until the tests end.
pub(crate) struct Server {
    url: String,
    state: PathBuf,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers requests such as `GET /v1/jobs` with a status and a body. `test` names its state folder.
    pub(crate) fn new(test: &str, answers: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = fresh_folder("live", test);
        fs::write(state.join("server.json"), format!(r#"{{"url": "{url}", "pid": 1}}"#)).unwrap();
        fs::write(state.join("token"), "secret\n").unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answers, heard): (Answers, _) = (Arc::new(answers), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (answers, heard) = (Arc::clone(&answers), Arc::clone(&heard));
                thread::spawn(move || serve(&stream.unwrap(), &*answers, &heard));
            }
        });
        Self { url, state, requests }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// `pollux SUBCOMMAND ARGS` that finds this server by its state folder.
    pub(crate) fn pollux(&self, args: &[&str]) -> Run {
        run(&mut self.command(args), b"")
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = client(args);
        command.env("POLLUX_STATE", &self.state);
        command
    }

    /// What was asked so far, without reads of the same.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.requests().into_iter().map(|request| request.line).collect()
    }
}

/// `pollux SUBCOMMAND ARGS` that knows no server.
pub(crate) fn client(args: &[&str]) -> Command {
    let mut command = pollux(args[0]);
    command.args(&args[1..]);
    for name in ["POLLUX_URL", "POLLUX_STATE", "POLLUX_TOKEN", "POLLUX_CA"] {
        command.env_remove(name);
    }
    command
}

fn serve(stream: &TcpStream, answers: &(dyn Fn(&str) -> (u16, String) + Send + Sync), heard: &Mutex<Vec<Request>>) {
    let mut reader = BufReader::new(stream);
    // A client keeps its connection until it ends.
    while let Some(request) = read(&mut reader) {
        let (status, body) = answers(&request.line);
        heard.lock().unwrap().push(request);
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
        if (&mut &*stream).write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&length| length > 0)?;
    let line = line.trim_end().strip_suffix(" HTTP/1.1").unwrap().to_owned();
    let (mut length, mut authorization) = (0, String::new());
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => value.clone_into(&mut authorization),
            "content-length" => length = value.parse().unwrap(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { line, authorization, body: String::from_utf8(body).unwrap() })
}
