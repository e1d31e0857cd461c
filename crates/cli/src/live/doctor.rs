//! `pollux doctor`: what this machine has, and whether trainings work on it.

use std::env;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use clap::builder::styling::{AnsiColor, Style};
use pollux_client::ClientError;
use serde::Deserialize;

use super::LiveError;
use super::server_args::ServerArgs;
use crate::output::one_line;
use crate::table::{Align, Cell, Table};

/// To import PyTorch and to ask the driver for its GPUs; one that is sick may never answer.
const PATIENCE: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(20);
/// What an interpreter says of itself, as JSON in its last line.
const PROBE: &str = "
import json, sys
import torch, torch.distributed as dist
import pollux.torch
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
nccl = '.'.join(map(str, torch.cuda.nccl.version())) if gpus and dist.is_nccl_available() else None
python = sys.version.split()[0]
print(json.dumps({'python': python, 'torch': torch.__version__, 'gpus': gpus, 'nccl': nccl}))
";

/// What `pollux doctor` takes.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// The interpreter that trainings run with [default: python or python3 of PATH]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,

    /// Fewer steps in the self-test: less sure of the noise scale, and faster
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    server: ServerArgs,
}

/// What was found of one thing.
struct Finding {
    name: &'static str,
    state: State,
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Fine,
    /// Not there, which may be meant.
    Absent,
    Failed,
}

/// What [`PROBE`] prints.
#[derive(Deserialize)]
struct Interpreter {
    python: String,
    torch: String,
    gpus: usize,
    nccl: Option<String>,
}

/// Why an interpreter does not say what it has.
enum Silent {
    /// There is none.
    NotStarted(String),
    /// What it said instead.
    Failed(String),
}

/// Prints what was found, then the self-test's own table.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let gpus = pollux_backend_local::gpu_names().map_err(|error| error.to_string());
    let python = args.python.clone().or_else(|| ["python", "python3"].into_iter().find_map(on_path));
    let probed = python.as_deref().map(probe);
    let findings = [
        driver(&gpus),
        interpreter(python.as_deref(), probed.as_ref()),
        torch(probed.as_ref(), gpus.as_ref().map_or(0, Vec::len)),
        scheduler(&args.server),
    ];
    let mut text = Vec::new();
    write_table(&findings, &mut text)?;
    writeln!(text)?;
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(&text).and_then(|()| stdout.flush()).context("cannot write to stdout")?;
    drop(stdout);
    let mut failed: Vec<&str> =
        findings.iter().filter(|it| it.state == State::Failed).map(|finding| finding.name).collect();
    if let (Some(python), Some(Ok(_))) = (&python, &probed)
        && !is_self_test_passed(python, args.quick)?
    {
        failed.push("self-test");
    }
    if failed.is_empty() { Ok(()) } else { Err(LiveError::Unwell { failed: failed.join(", ") }.into()) }
}

fn driver(gpus: &Result<Vec<String>, String>) -> Finding {
    let (state, text) = match gpus {
        Ok(names) if names.is_empty() => (State::Absent, "none: jobs run on slots without GPUs".to_owned()),
        Ok(names) => (State::Fine, format!("{}: {}", names.len(), counted(names))),
        Err(error) => (State::Failed, error.clone()),
    };
    Finding { name: "GPUs", state, text }
}

/// Names with how often each occurs.
fn counted(names: &[String]) -> String {
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match kinds.iter_mut().find(|(kind, _)| kind == name) {
            Some((_, count)) => *count += 1,
            None => kinds.push((name, 1)),
        }
    }
    kinds.iter().map(|(kind, count)| format!("{count} x {kind}")).collect::<Vec<_>>().join(", ")
}

fn interpreter(python: Option<&Path>, probed: Option<&Result<Interpreter, Silent>>) -> Finding {
    let (state, text) = match (python, probed) {
        (Some(path), Some(Ok(found))) => (State::Fine, format!("{} at {}", found.python, path.display())),
        (Some(path), Some(Err(Silent::NotStarted(error)))) => (State::Failed, format!("{}: {error}", path.display())),
        (Some(path), _) => (State::Fine, path.display().to_string()),
        (None, _) => (State::Failed, "none on PATH; expected python, or --python PATH".to_owned()),
    };
    Finding { name: "Python", state, text }
}

fn torch(probed: Option<&Result<Interpreter, Silent>>, listed: usize) -> Finding {
    let (state, text) = match probed {
        None | Some(Err(Silent::NotStarted(_))) => (State::Failed, "no Python to ask".to_owned()),
        Some(Err(Silent::Failed(error))) if error.contains("ModuleNotFoundError") => {
            (State::Failed, format!("{error}; expected the package `pollux` with its extra `torch` there"))
        }
        Some(Err(Silent::Failed(error))) => (State::Failed, error.clone()),
        Some(Ok(found)) if found.gpus < listed => {
            let seen = format!("torch {} sees {} GPUs of {listed}", found.torch, found.gpus);
            (State::Failed, format!("{seen}; expected a torch that is built for their driver"))
        }
        Some(Ok(found)) => {
            let nccl = found.nccl.as_ref().map(|version| format!(", NCCL {version}")).unwrap_or_default();
            (State::Fine, format!("torch {}, {} GPUs{nccl}", found.torch, found.gpus))
        }
    };
    Finding { name: "pollux.torch", state, text }
}

fn scheduler(server: &ServerArgs) -> Finding {
    let asked = server.client().and_then(|client| Ok((client.url().to_owned(), client.cluster()?)));
    let (state, text) = match asked {
        Ok((url, cluster)) => {
            let text = format!("{} at {url}: {}, {} GPUs", cluster.version, cluster.policy, cluster.gpus);
            (State::Fine, text)
        }
        Err(error) if matches!(error.downcast_ref(), Some(ClientError::Unknown { .. })) => {
            (State::Absent, "none with this state folder: `pollux up` starts one".to_owned())
        }
        Err(error) => (State::Failed, format!("{error:#}")),
    };
    Finding { name: "scheduler", state, text }
}

fn write_table(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::with_headings(&[("", Align::Left), ("state", Align::Left), ("found", Align::Left)]);
    for finding in findings {
        let (word, style) = match finding.state {
            State::Fine => ("ok", AnsiColor::Green.on_default()),
            State::Absent => ("none", Style::new()),
            State::Failed => ("FAIL", AnsiColor::Red.on_default().bold()),
        };
        table.push(vec![Cell::plain(finding.name), Cell::styled(word, style), Cell::plain(one_line(&finding.text))]);
    }
    table.write("", out)
}

/// Where a program of this name is.
fn on_path(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Asks an interpreter what it has, or says in a line why it cannot tell.
fn probe(python: &Path) -> Result<Interpreter, Silent> {
    let mut command = Command::new(python);
    command.args(["-c", PROBE]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| Silent::NotStarted(error.to_string()))?;
    let readers = [
        child.stdout.take().map(|pipe| thread::spawn(|| read(pipe))),
        child.stderr.take().map(|pipe| thread::spawn(|| read(pipe))),
    ];
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().map_err(|error| Silent::Failed(error.to_string()))? {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                // It may end at this very moment.
                let _ = child.kill();
                let _ = child.wait();
                return Err(Silent::Failed(format!("no answer within {} s", PATIENCE.as_secs())));
            }
            None => thread::sleep(GLANCE),
        }
    };
    let [said, complaints] = readers.map(|reader| reader.and_then(|it| it.join().ok()).unwrap_or_default());
    let last = |text: &str| text.lines().last().unwrap_or_default().to_owned();
    if !status.success() {
        let reason = last(complaints.trim_end());
        return Err(Silent::Failed(if reason.is_empty() { status.to_string() } else { reason }));
    }
    serde_json::from_str(&last(said.trim_end())).map_err(|_| Silent::Failed(format!("it says {:?}", last(&said))))
}

fn read(mut pipe: impl Read) -> String {
    let mut text = Vec::new();
    // What was read before a pipe broke is all there is.
    let _ = pipe.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Lets the self-test print its table.
fn is_self_test_passed(python: &Path, quick: bool) -> anyhow::Result<bool> {
    let mut command = Command::new(python);
    command.args(["-m", "pollux.torch.selftest"]).args(quick.then_some("--quick")).stdin(Stdio::null());
    Ok(command.status().with_context(|| python.display().to_string())?.success())
}
