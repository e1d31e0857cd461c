//! `pollux up`: a scheduler for this machine, until a signal ends it. Jobs run on without it.

mod error;
mod logging;
mod plan_args;
mod signals;

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use anyhow::Context;
use clap::Args;
use clap::builder::styling::Style;
use pollux_backend_local::{
    LocalBackend, LocalError, LocalSettings, LogLimits, MachineIdentity, NodeLayout, NodeSummary,
};
use pollux_backend_remote::{Nodes, RemoteBackend};
use pollux_engine::EngineSettings;
use pollux_lab::policy_named;
use pollux_policy::PolicySettings;
use pollux_server::http::{AllocationSettings, HttpSettings, SocketFile, TlsFiles, Visibility};
use pollux_server::{Daemon, Retention, ServerSettings};
use pollux_slurm::Queues;
use thiserror::Error;
use tracing::{error, info, warn};

use crate::live::StateArgs;
use crate::output;
use crate::table::{Align, Cell, Table};
use crate::usage::whole;
pub(crate) use error::UpError;
pub(crate) use logging::{LogArgs, start as start_log};
pub(crate) use plan_args::PlanArgs;
pub(crate) use signals::Signals;

/// What `pollux up` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Ctrl-C or SIGTERM ends the scheduler, not the jobs: they train on, and the next `pollux up` carries on with them.")]
pub(crate) struct UpArgs {
    #[command(flatten)]
    state: StateArgs,

    /// Address and port of the REST interface; port 0 takes one that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7878", value_parser = address)]
    listen: SocketAddr,

    #[command(flatten)]
    plan: PlanArgs,

    /// Slots without GPUs [default: the GPUs of this machine, or a slot for each core]; 0 where only other machines work
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with = "nodes")]
    #[arg(value_parser = whole(0..=1_024_u32, "expected whole numbers from 0 to 1024"))]
    slots: Option<u32>,

    /// Pretend nodes by slots of each, to try placement
    #[arg(long, value_name = "NxS", value_parser = layout)]
    nodes: Option<NodeLayout>,

    /// Where jobs save checkpoints, one folder for each job [default: `checkpoints` in the state folder]
    #[arg(long, value_name = "FOLDER")]
    checkpoint_dir: Option<PathBuf>,

    /// How long to keep checkpoints of finished jobs, such as 12h or 7d
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = pollux_job::seconds)]
    keep_checkpoints_for: u64,

    /// How much disk space they may use in total, such as 50G; the oldest are deleted first
    #[arg(long, value_name = "BYTES", default_value = "50G", value_parser = pollux_job::bytes)]
    keep_checkpoints_bytes: u64,

    /// Certificate chain of the server: a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Its private key: a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// A host name of the server, besides its address
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,

    /// Where workers reach the server [default: a listener of their own on this machine]
    #[arg(long, value_name = "URL")]
    worker_url: Option<String>,

    /// Certificate authorities for that address: a PEM file that workers can read
    #[arg(long, value_name = "FILE", requires = "worker_url")]
    worker_ca: Option<PathBuf>,

    /// Unix socket for users of this machine, who need no token [default: run/socket in the state folder, which only you can
    /// enter]
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,

    /// Which jobs members see: all, or own. Admins and viewers see all
    #[arg(long, value_name = "WHICH", default_value = "all", value_parser = visibility)]
    visibility: Visibility,

    /// How often Slurm is asked about allocations, at most
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = interval)]
    slurm_interval: u64,

    #[command(flatten)]
    log: LogArgs,
}

/// Schedules until a signal comes.
pub(crate) fn run(args: &UpArgs) -> anyhow::Result<()> {
    let _log = start_log(&args.log);
    schedule(args).map_err(|error| {
        if !args.log.is_json() {
            return error;
        }
        error!("{error:#}");
        error.context(Logged)
    })
}

/// Its cause is in the log already, and nothing else may be on stderr.
#[derive(Debug, Error)]
#[error("it is in the log")]
pub(crate) struct Logged;

fn schedule(args: &UpArgs) -> anyhow::Result<()> {
    pollux_backend_local::raise_files_max();
    let state_dir = args.state.folder()?;
    let policy = policy_named(&args.plan.policy).map_err(UpError::Policy)?;
    let mut nodes = Vec::new();
    let local = local_settings(args)?;
    let (joined, queues) = (Nodes::default(), Queues::default());
    let program = local.program.clone();
    let open_backend = |observer| {
        // Nobody else has the state folder now.
        queues.open(&state_dir, &program)?;
        let own = |observer| {
            let own = LocalBackend::new(&state_dir, local, observer)?;
            own.warn_of_shared_disk();
            nodes = own.nodes().to_vec();
            Ok::<_, Box<dyn Error + Send + Sync>>(own)
        };
        let backend = RemoteBackend::open(&joined, &state_dir, own, observer)?;
        Ok::<_, Box<dyn Error + Send + Sync>>(Box::new(backend) as Box<_>)
    };
    let settings = ServerSettings {
        worker_url: args.worker_url.clone(),
        worker_authority: args.worker_ca.as_deref().map(absolute).transpose()?,
        ..server_settings(args, &state_dir, policy.clone())
    };
    let signals = Signals::listen().context("cannot listen for signals")?;
    let allocations = AllocationSettings { queues: queues.clone(), interval: Duration::from_secs(args.slurm_interval) };
    let (nodes_joined, allocations) = (Some(joined.clone()), Some(allocations));
    let http = HttpSettings { nodes: nodes_joined, allocations, ..http_settings(args, &state_dir) };
    let daemon = Daemon::start(settings, &http, open_backend).map_err(UpError::from)?;
    if let Some(socket) = &args.socket {
        let account = if rustix::process::geteuid().is_root() { "root" } else { "the account of this scheduler" };
        warn!(socket = %socket.display(), "users of this machine may submit jobs, which all run as {account}");
    }
    let stopper = daemon.stopper();
    signals.stop(move || stopper.stop()).context("cannot listen for signals")?;
    print_banner(&Banner { url: daemon.url(), state_dir: &state_dir, nodes: &nodes, policy: &policy, args })?;
    daemon.wait().map_err(UpError::from)?;
    info!("ended; jobs train on, and the next `pollux up` carries on with them");
    Ok(())
}

/// Workers start elsewhere.
fn absolute(file: &Path) -> anyhow::Result<PathBuf> {
    file.canonicalize().with_context(|| format!("--worker-ca {}", file.display()))
}

fn local_settings(args: &UpArgs) -> anyhow::Result<LocalSettings> {
    Ok(LocalSettings {
        nodes: match (args.nodes, args.slots) {
            (Some(layout), _) => layout,
            (None, Some(0)) => NodeLayout::Nothing,
            (None, Some(slots)) => NodeLayout::Slots(slots),
            (None, None) => NodeLayout::Gpus,
        },
        program: env::current_exe().context("cannot find this program")?,
        grace: Duration::from_secs(args.plan.grace),
        log: LogLimits::default(),
        checkpoint_dir: args.checkpoint_dir.clone(),
        identity: own_identity(args.worker_url.as_deref()),
    })
}

/// Workers of other machines reach those of this one where they reach the scheduler.
fn own_identity(worker_url: Option<&str>) -> MachineIdentity {
    let host = worker_url.and_then(|url| {
        let (_, rest) = url.split_once("://")?;
        let end = rest.find('/').unwrap_or(rest.len());
        let host = match rest[..end].strip_prefix('[') {
            Some(literal) => literal.split(']').next()?,
            None => rest[..end].split(':').next()?,
        };
        Some(host.to_owned())
    });
    let usual = MachineIdentity::default();
    MachineIdentity { address: host.unwrap_or(usual.address), ..usual }
}

/// A machine is watched more closely than a cluster in a simulation: whoever submits a job waits for it.
fn server_settings(args: &UpArgs, state_dir: &Path, policy: PolicySettings) -> ServerSettings {
    let engine = EngineSettings {
        round_interval_s: args.plan.round_interval,
        round_gap_min_s: args.plan.round_interval.min(3.0),
        replans_on_events: true,
        // Processes of one machine start and change over in seconds.
        restart_cost_default_s: 10.0,
        settle_timeout_s: 600.0,
        ..EngineSettings::default()
    };
    let grace = Duration::from_secs(args.plan.grace);
    let keep_for = Duration::from_secs(args.keep_checkpoints_for);
    let retention = Retention { keep_for, keep_bytes: args.keep_checkpoints_bytes };
    // The address is filled in once it is known.
    ServerSettings { engine, grace, retention, ..ServerSettings::new(state_dir, "", policy) }
}

fn visibility(word: &str) -> Result<Visibility, &'static str> {
    match word {
        "all" => Ok(Visibility::All),
        "own" => Ok(Visibility::Own),
        _ => Err("expected all or own"),
    }
}

fn http_settings(args: &UpArgs, state_dir: &Path) -> HttpSettings {
    let files = args.tls_cert.clone().zip(args.tls_key.clone());
    HttpSettings {
        tls: files.map(|(certificate, key)| TlsFiles { certificate, key }),
        hosts: args.host.clone(),
        visibility: args.visibility,
        socket: Some(args.socket.clone().map_or_else(|| SocketFile::own(state_dir), SocketFile::shared)),
        ..HttpSettings::new(args.listen)
    }
}

/// What users have to know of a scheduler that has started.
struct Banner<'a> {
    url: &'a str,
    state_dir: &'a Path,
    nodes: &'a [NodeSummary],
    policy: &'a PolicySettings,
    args: &'a UpArgs,
}

fn print_banner(banner: &Banner<'_>) -> anyhow::Result<()> {
    let mut text = Vec::new();
    banner.write(&mut text)?;
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(&text).and_then(|()| stdout.flush()) {
        // Nobody needs to listen for it to work.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("cannot write to stdout"),
    }
}

impl Banner<'_> {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let bold = Style::new().bold();
        let state_dir = fs::canonicalize(self.state_dir).unwrap_or_else(|_| self.state_dir.to_owned());
        writeln!(out, "pollux {} listens on {bold}{}{bold:#}", env!("CARGO_PKG_VERSION"), self.url)?;
        let interval = format!("a plan every {} s, and when jobs come and go", self.args.plan.round_interval);
        let mut table = Table::without_headings(&[Align::Left, Align::Left]);
        let mut push = |label: &str, text: String| {
            table.push(vec![Cell::styled(label, Style::new().dimmed()), Cell::plain(output::one_line(&text))]);
        };
        push("cluster", self.cluster());
        push("policy", format!("{}, {interval}", self.policy.name()));
        push("state", state_dir.display().to_string());
        push("token", state_dir.join("token").display().to_string());
        push("next", "`pollux submit -- python train.py`, `pollux top`".to_owned());
        table.write("  ", out)
    }

    fn cluster(&self) -> String {
        let node = |node: &NodeSummary| {
            let (slots, s) = (node.slots, if node.slots == 1 { "" } else { "s" });
            if node.on_gpus {
                format!("{slots} GPU{s} ({})", node.gpu_type)
            } else {
                format!("{slots} slot{s} without GPUs")
            }
        };
        match self.nodes {
            [] => "no slots of its own: machines join by `pollux node --join`".to_owned(),
            [only] => node(only),
            [first, rest @ ..] if rest.iter().all(|it| it.slots == first.slots && it.gpu_type == first.gpu_type) => {
                format!("{} pretend nodes of {}", self.nodes.len(), node(first))
            }
            nodes => nodes.iter().map(node).collect::<Vec<_>>().join(", "),
        }
    }
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "expected ADDRESS:PORT, such as 127.0.0.1:7878")
}

/// Not so often that anybody would feel it.
fn interval(text: &str) -> Result<u64, String> {
    let seconds = pollux_job::seconds(text).map_err(|error| error.to_string())?;
    if (1..=3_600).contains(&seconds) { Ok(seconds) } else { Err("expected 1s to 1h".to_owned()) }
}

fn layout(text: &str) -> Result<NodeLayout, &'static str> {
    text.parse().map_err(|_: LocalError| "expected NODESxSLOTS, such as 4x4")
}
