//! `pollux operator`: a scheduler for a Kubernetes cluster, and `pollux supervise`, the main process of its pods.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use pollux_backend_kube::KubeSettings;
use pollux_lab::policy_named;
use pollux_operator::{Operator, OperatorSettings, Stop};
use tracing::info;

use crate::output;
use crate::up::{LogArgs, PlanArgs, Signals, UpError, address, start_log};

/// What `pollux operator` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
It runs in a pod, with the service account of its chart, and finds the cluster by that; elsewhere by KUBECONFIG. SIGTERM \
ends it, not the jobs: they train on, and the next operator carries on with them.")]
pub(crate) struct OperatorArgs {
    /// The namespace of what is its own: journal, certificates, lease
    #[arg(long, value_name = "NAME", env = "POLLUX_NAMESPACE", default_value = "pollux")]
    namespace: String,

    /// What sets it apart from other operators in the cluster
    #[arg(long, value_name = "NAME", default_value = "pollux")]
    instance: String,

    /// Who it is among its replicas: the name of its pod
    #[arg(long, value_name = "NAME", env = "POLLUX_POD")]
    identity: String,

    /// The name of its Service, as workers reach it
    #[arg(long, value_name = "NAME")]
    host: String,

    /// The port of its Service
    #[arg(long, value_name = "PORT", default_value_t = 443)]
    port: u16,

    /// Address and port of the REST interface, which has TLS
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443", value_parser = address)]
    listen: SocketAddr,

    /// The image that this program is in, for the supervisor in every pod
    #[arg(long, value_name = "IMAGE")]
    image: String,

    /// When that image is pulled: Always, IfNotPresent or Never
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    pull_policy: String,

    /// Where this program is in that image
    #[arg(long, value_name = "FILE", default_value = "/bin/pollux")]
    program: String,

    #[command(flatten)]
    plan: PlanArgs,

    /// How long the authority for its certificates signs before another does, such as 90d
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = renewal)]
    renew_authority_after: u64,

    /// What containers ask for that need GPUs
    #[arg(long, value_name = "RESOURCE", default_value = "nvidia.com/gpu")]
    gpu_resource: String,

    /// The label of nodes that names the type of their GPUs
    #[arg(long, value_name = "LABEL", default_value = "nvidia.com/gpu.product")]
    type_label: String,

    /// Use only nodes with this label
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    node_label: Vec<(String, String)>,

    /// A folder for files that need not survive
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/pollux")]
    state: PathBuf,

    #[command(flatten)]
    log: LogArgs,
}

fn label(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn renewal(text: &str) -> Result<u64, String> {
    let seconds = pollux_job::seconds(text).map_err(|error| error.to_string())?;
    if seconds < 10 { Err("expected 10s or more".to_owned()) } else { Ok(seconds) }
}

/// Schedules until a signal comes.
pub(crate) fn run(args: &OperatorArgs) -> anyhow::Result<()> {
    let _log = start_log(&args.log);
    let policy = policy_named(&args.plan.policy).map_err(UpError::Policy)?;
    let settings = OperatorSettings {
        kube: KubeSettings {
            namespace: args.namespace.clone(),
            instance: args.instance.clone(),
            gpu_resource: args.gpu_resource.clone(),
            type_label: args.type_label.clone(),
            node_labels: args.node_label.iter().cloned().collect(),
            image: args.image.clone(),
            pull_policy: args.pull_policy.clone(),
            command: args.program.clone(),
            grace: Duration::from_secs(args.plan.grace),
            ..KubeSettings::default()
        },
        state_dir: args.state.clone(),
        listen: args.listen,
        host: args.host.clone(),
        port: args.port,
        identity: args.identity.clone(),
        policy,
        round_interval_s: args.plan.round_interval,
        grace: Duration::from_secs(args.plan.grace),
        renew_authority_after: Duration::from_secs(args.renew_authority_after),
    };
    let signals = Signals::listen().context("cannot listen for signals")?;
    let stop = Stop::default();
    let on_signal = stop.clone();
    signals.stop(move || on_signal.stop()).context("cannot listen for signals")?;
    Operator::run(&settings, &stop)?;
    info!("ended; jobs train on, and the next operator carries on with them");
    Ok(())
}

/// What `pollux supervise` takes.
#[derive(Args, Debug)]
pub(crate) struct SuperviseArgs {
    /// Put this program there, instead
    #[arg(long, value_name = "FILE", conflicts_with = "is_started")]
    install: Option<PathBuf>,

    /// Tell by the exit code whether the program of this container was started, instead
    #[arg(long)]
    is_started: bool,

    /// Tell by the exit code whether no replica of this container has ended, instead
    #[arg(long, conflicts_with_all = ["install", "is_started"])]
    is_whole: bool,

    /// Run the replica that was written there, for the main process of a container with several
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["install", "is_started", "is_whole"])]
    replica: Option<PathBuf>,

    /// The program and its arguments
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// The main process of a pod.
pub(crate) fn supervise(args: &SuperviseArgs) -> ExitCode {
    let outcome = match (&args.install, &args.replica) {
        _ if args.is_started => return ExitCode::from(u8::from(!pollux_supervisor::is_started())),
        _ if args.is_whole => return ExitCode::from(u8::from(!pollux_supervisor::is_whole())),
        (Some(file), _) => pollux_supervisor::install(file).map(|()| 0),
        (None, Some(folder)) => pollux_supervisor::run_replica(folder),
        (None, None) => pollux_supervisor::supervise(&args.command),
    };
    outcome.map(ExitCode::from).unwrap_or_else(|error| {
        output::complain(&error.to_string());
        ExitCode::FAILURE
    })
}
