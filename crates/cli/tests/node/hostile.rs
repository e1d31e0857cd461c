//! A machine whose scheduler is not what it should be, or says again what was said long ago: a scheduler of this test's own
//! speaks to a real agent.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::site::PATIENCE;

/// The scheduler's end of a connection.
struct Fake {
    folder: PathBuf,
    stream: BufReader<TcpStream>,
    agent: Child,
}

impl Fake {
    /// Welcomes an agent, in the name of a scheduler with a folder for checkpoints that the machine does not see.
    fn new(test: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("node").join(test);
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        fs::create_dir_all(&folder).unwrap();
        let token = folder.join("token");
        fs::write(&token, "a".repeat(64)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let log = fs::File::create(folder.join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
        command.args(["node", "--name", "gpu1", "--slots", "4", "--join"]);
        command.arg(format!("http://{}", listener.local_addr().unwrap()));
        command.arg("--token-file").arg(token).arg("--state").arg(folder.join("state"));
        for variable in ["POLLUX_URL", "POLLUX_TOKEN", "POLLUX_STATE", "POLLUX_LOG"] {
            command.env_remove(variable);
        }
        let agent = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut fake = Self { folder, stream: BufReader::new(stream), agent };
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            fake.stream.read_line(&mut line).unwrap();
        }
        let switched = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: pollux-node\r\n\r\n";
        fake.stream.get_mut().write_all(switched.as_bytes()).unwrap();
        assert_eq!(fake.heard()["kind"], "hello");
        let checkpoints = json!({"path": "/nowhere/checkpoints", "mark": "unseen"});
        fake.say(&json!({
            "kind": "welcome", "protocol": 1, "version": "0.1.0", "cluster": "ab".repeat(32), "checkpoints": checkpoints
        }));
        fake
    }

    fn say(&mut self, message: &Value) {
        let bytes = message.to_string().into_bytes();
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        self.stream.get_mut().write_all(&[&length[..], &bytes].concat()).unwrap();
    }

    fn heard(&mut self) -> Value {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut bytes).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Waits for a message of a kind.
    fn hear(&mut self, kind: &str) -> Value {
        loop {
            let message = self.heard();
            if message["kind"] == kind {
                return message;
            }
        }
    }

    /// An order for a program that leaves a line whenever it runs.
    fn start(&mut self, epoch: u64, replica: u64) {
        let ran = self.ran();
        let script = format!("echo ran >> '{}'; sleep 600", ran.display());
        self.say(&json!({
            "kind": "start", "secrets": {}, "order": {
                "epoch": epoch, "replica": replica, "job": 1, "node": "gpu1", "gpus": 1, "shares_with": null,
                "command": ["sh", "-c", script], "working_dir": "/", "environment": {}
            }
        }));
    }

    fn ran(&self) -> PathBuf {
        self.folder.join("ran")
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.ran()).unwrap_or_default().lines().count()
    }

    fn ask(&mut self, request: u64, question: &Value) -> Value {
        self.say(&json!({"kind": "ask_saved", "request": request, "ask": question}));
        loop {
            let answer = self.hear("answer_saved");
            if answer["request"] == request {
                return answer["answer"].clone();
            }
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // Nothing keeps running after a test.
        self.say(&json!({"kind": "leave", "epoch": 1_000, "grace_ms": 0}));
        let _ = self.agent.wait();
    }
}

#[test]
fn an_order_that_is_said_again_or_in_the_name_of_an_earlier_scheduler_starts_nothing() {
    let mut fake = Fake::new("replayed");
    fake.say(&json!({"kind": "adopt", "epoch": 7, "replicas": []}));
    fake.start(7, 1);
    assert_eq!(fake.hear("started")["replica"], 1);
    fake.start(7, 1);
    fake.start(6, 2);
    assert_eq!(fake.hear("superseded")["by"], 7);
    fake.say(&json!({"kind": "stop", "epoch": 6, "replica": 1, "grace_ms": 0}));
    assert_eq!(fake.hear("superseded")["by"], 7);
    fake.say(&json!({"kind": "stop", "epoch": 7, "replica": 1, "grace_ms": 0}));
    assert_eq!(fake.hear("exited")["replica"], 1);
    // It has ended, which is said again.
    fake.start(7, 1);
    assert_eq!(fake.hear("exited")["replica"], 1);
    assert_eq!(fake.runs(), 1);
}

#[test]
fn a_scheduler_reads_and_deletes_nothing_but_what_jobs_have_saved() {
    let mut fake = Fake::new("curious");
    fake.say(&json!({"kind": "adopt", "epoch": 7, "replicas": []}));
    let folder = fake.hear("keeps")["folder"].as_str().unwrap().to_owned();
    let job = Path::new(&folder).join("1");
    fs::create_dir_all(&job).unwrap();
    fs::write(job.join("state"), "precious").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", job.join("link")).unwrap();
    let files = fake.ask(1, &json!({"about": "files", "job": 1}));
    assert_eq!(files["files"]["files"], json!([{"path": "state", "bytes": 8}]));
    for (request, file) in (2..).zip(["../../node.json", "/etc/passwd", "", "link"]) {
        let piece = json!({"about": "piece", "job": 1, "file": file, "from": 0, "bytes_max": 100});
        let answer = fake.ask(request, &piece);
        assert!(answer["failed"].is_string(), "{file}: {answer}");
    }
    fake.say(&json!({"kind": "drop_saved", "epoch": 6, "job": 1}));
    assert_eq!(fake.ask(9, &json!({"about": "files", "job": 1}))["files"]["files"][0]["path"], "state");
    fake.say(&json!({"kind": "drop_saved", "epoch": 7, "job": 1}));
    let mut files = (10..).map(|request| fake.ask(request, &json!({"about": "files", "job": 1})));
    let deadline = Instant::now() + PATIENCE;
    while files.next().unwrap()["files"]["files"] != json!([]) {
        assert!(Instant::now() < deadline, "it is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}
