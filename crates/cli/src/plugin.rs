//! `kubectl pollux`: the same commands, for jobs of a Kubernetes cluster. The binary is a plugin where it is called
//! `kubectl-pollux`.

mod submit;

use std::env;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use pollux_client::JobAction;
use pollux_kubectl::{Access, Cluster, KubectlError, OperatorName, Tunnel};

use crate::live::{self, ViewCommand};
use crate::output;

/// As kubectl looks for it.
const NAME: &str = "kubectl-pollux";

/// Whether this process was started as a plugin of kubectl.
pub(crate) fn is_called() -> bool {
    env::args_os().next().is_some_and(|program| Path::new(&program).file_name().is_some_and(|name| name == NAME))
}

/// Goodput-driven scheduling of deep-learning jobs on a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(name = NAME, bin_name = "kubectl pollux", version)]
pub(crate) struct Plugin {
    #[command(flatten)]
    access: AccessArgs,

    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    /// Create a PolluxJob
    Submit(Box<submit::SubmitArgs>),
    #[command(flatten)]
    View(ViewCommand),
    /// End jobs: their resources are deleted
    Cancel(JobArgs),
    /// Suspend jobs: they give up their GPUs until they are resumed
    Pause(JobArgs),
    /// Resume suspended jobs
    Resume(JobArgs),
}

/// Jobs of one namespace.
#[derive(Args, Debug)]
struct JobArgs {
    /// Jobs, by the names of their resources
    #[arg(value_name = "NAME", required = true)]
    jobs: Vec<String>,
}

/// Which cluster, and as whom.
#[derive(Args, Debug)]
pub(crate) struct AccessArgs {
    /// The namespace of the jobs [default: of the context]
    #[arg(short, long, value_name = "NAME", global = true)]
    namespace: Option<String>,

    /// Jobs of all namespaces; needs rights in that of the operator
    #[arg(short = 'A', long, global = true, conflicts_with = "namespace")]
    all_namespaces: bool,

    /// The context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,

    /// The kubeconfig [default: KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,

    /// The operator, by its namespace and Service
    #[arg(long, value_name = "NAMESPACE/NAME", env = "POLLUX_OPERATOR", hide_env = true, global = true)]
    #[arg(default_value = "pollux/pollux", hide_default_value = false)]
    operator: OperatorName,

    /// The service account of the namespace by whose token the operator knows your rights
    #[arg(long, value_name = "NAME", global = true, default_value = "default")]
    service_account: String,
}

impl Plugin {
    /// Reads the arguments of this process. How to find a scheduler without a cluster is not for a plugin.
    pub(crate) fn parse_arguments() -> Result<Self, clap::Error> {
        let hidden = ["server", "state"];
        let hide = |argument: clap::Arg| {
            let is_hidden = hidden.contains(&argument.get_id().as_str());
            if is_hidden { argument.hide(true) } else { argument }
        };
        let command = Self::command().mut_subcommands(|subcommand| subcommand.mut_args(hide));
        let matches = command.try_get_matches()?;
        if let Some((_, given)) = matches.subcommand()
            && let Some(name) = hidden.into_iter().find(|name| is_on_the_command_line(given, name))
        {
            let message = format!("--{name} is unknown to kubectl pollux; expected --operator NAMESPACE/NAME");
            return Err(clap::Error::raw(clap::error::ErrorKind::Format, message));
        }
        Self::from_arg_matches(&matches)
    }
}

fn is_on_the_command_line(given: &clap::ArgMatches, name: &str) -> bool {
    let known = given.try_contains_id(name).is_ok();
    known && given.value_source(name) == Some(clap::parser::ValueSource::CommandLine)
}

impl AccessArgs {
    fn access(&self) -> Access {
        Access {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            namespace: self.namespace.clone(),
            all_namespaces: self.all_namespaces,
            service_account: self.service_account.clone(),
            operator: self.operator.clone(),
        }
    }
}

/// Does what was asked for.
pub(crate) fn run(plugin: Plugin) -> anyhow::Result<()> {
    let access = plugin.access.access();
    let cluster = Cluster::connect(&access)?;
    match plugin.command {
        PluginCommand::Submit(args) => submit::run(&args, &cluster),
        PluginCommand::View(mut command) => {
            command.server().use_tunnel(Tunnel::open(&cluster, &access)?);
            live::view(&command)
        }
        PluginCommand::Cancel(args) => act(&cluster, &args, JobAction::Cancel),
        PluginCommand::Pause(args) => act(&cluster, &args, JobAction::Pause),
        PluginCommand::Resume(args) => act(&cluster, &args, JobAction::Resume),
    }
}

/// Tells of each; the last failure is that of the command.
fn act(cluster: &Cluster, args: &JobArgs, action: JobAction) -> anyhow::Result<()> {
    let one = |name: &str| match action {
        JobAction::Cancel => cluster.delete(name).map(|()| "is deleted, and ends"),
        JobAction::Pause => cluster.suspend(name, true).map(|()| "is suspended"),
        JobAction::Resume => cluster.suspend(name, false).map(|()| action.outcome()),
    };
    let mut failure: Option<KubectlError> = None;
    for name in &args.jobs {
        match one(name) {
            Ok(done) => output::note(&format!("job {name} in namespace {} {done}", cluster.namespace())),
            Err(error) => {
                if let Some(earlier) = failure.replace(error) {
                    output::complain(&earlier);
                }
            }
        }
    }
    failure.map_or(Ok(()), |error| Err(error.into()))
}
