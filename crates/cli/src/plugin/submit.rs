use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use pollux_job::JobSpec;
use pollux_kubectl::{Cluster, PodSettings, PodsPer, job_resource};

use crate::live::{SizeArgs, TreatmentArgs, variable};
use crate::output::{self, OutputFormat};

/// What `kubectl pollux submit` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
It creates a PolluxJob, with your rights: what admission rules of the cluster say holds. What has no option here, such as \
volumes, is written into a file for `kubectl create`; --dry-run prints one to begin with.")]
pub(super) struct SubmitArgs {
    /// Program and arguments, the same for every replica
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,

    /// The image that it is in
    #[arg(long, value_name = "IMAGE")]
    image: String,

    /// A name for the job [default: the name of the program, with random letters]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    size: SizeArgs,

    #[command(flatten)]
    treatment: TreatmentArgs,

    /// An environment variable for the program
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,

    /// Where the program starts in the image [default: /]
    #[arg(long, value_name = "DIR")]
    working_dir: Option<PathBuf>,

    /// A volume claim for checkpoints that all its pods can write to
    #[arg(long, value_name = "NAME")]
    checkpoint_claim: Option<String>,

    /// A name for those it belongs to: kept and shown
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,

    /// What a pod holds: all replicas that the job has on a node, or one, so that it grows by single ones in place
    /// [default: node]
    #[arg(long, value_name = "node|replica", value_parser = pods_per)]
    pods_per: Option<PodsPer>,

    /// The service account of its pods [default: that of the namespace]
    #[arg(long, value_name = "NAME")]
    pod_service_account: Option<String>,

    /// Print the resource and create nothing
    #[arg(long)]
    dry_run: bool,

    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    output: OutputFormat,
}

/// Makes the resource of a job.
pub(super) fn run(args: &SubmitArgs, cluster: &Cluster) -> anyhow::Result<()> {
    let pods = PodSettings {
        image: args.image.clone(),
        checkpoint_claim: args.checkpoint_claim.clone(),
        queue: args.queue.clone(),
        service_account: args.pod_service_account.clone(),
        pods_per: args.pods_per.unwrap_or_default(),
    };
    let resource = job_resource(&spec(args), &pods)?;
    if args.dry_run {
        return output::print(args.output, &resource, |out| {
            let text = serde_norway::to_string(&resource).map_err(std::io::Error::other)?;
            write!(out, "{text}")
        });
    }
    let made = cluster.create(&resource)?;
    let name = made.metadata.name.clone().unwrap_or_default();
    output::print(args.output, &made, |out| {
        writeln!(out, "job {name} in namespace {} is created", cluster.namespace())
    })?;
    if matches!(args.output, OutputFormat::Table) {
        output::note(&format!(
            "`kubectl pollux logs -f {name}` follows its logs, `kubectl pollux explain {name}` explains its GPUs"
        ));
    }
    Ok(())
}

fn spec(args: &SubmitArgs) -> JobSpec {
    let mut spec = JobSpec {
        name: args.name.clone().unwrap_or_default(),
        command: args.command.clone(),
        env: args.env.iter().cloned().collect(),
        working_dir: args.working_dir.clone().unwrap_or_default(),
        ..JobSpec::default()
    };
    args.treatment.apply(&mut spec);
    args.size.apply(&mut spec);
    if args.size.replicas.is_none() {
        spec.replicas = spec.replicas_min;
    }
    spec
}

fn pods_per(text: &str) -> Result<PodsPer, &'static str> {
    match text {
        "node" => Ok(PodsPer::Node),
        "replica" => Ok(PodsPer::Replica),
        _ => Err("expected node or replica"),
    }
}
