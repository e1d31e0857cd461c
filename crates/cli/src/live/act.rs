//! Orders about jobs and nodes. A name that is none stops all of them; a refusal only its own.

use clap::Args;
use pollux_client::{ClientError, JobAction, NodeAction};

use super::lookup::job_id;
use super::server_args::ServerArgs;
use crate::output;

/// What `pollux cancel`, `pause` and `resume` take.
#[derive(Args, Debug)]
pub(crate) struct JobsArgs {
    /// Jobs, by number or name
    #[arg(value_name = "JOB", required = true)]
    jobs: Vec<String>,

    #[command(flatten)]
    server: ServerArgs,
}

/// What `pollux drain` and `undrain` take.
#[derive(Args, Debug)]
pub(crate) struct NodesArgs {
    /// Nodes, by name
    #[arg(value_name = "NODE", required = true)]
    nodes: Vec<String>,

    #[command(flatten)]
    server: ServerArgs,
}

/// Cancels, pauses or resumes jobs.
pub(crate) fn run_on_jobs(args: &JobsArgs, action: JobAction) -> anyhow::Result<()> {
    let client = args.server.client()?;
    let ids: Vec<u64> = args.jobs.iter().map(|job| job_id(&client, job)).collect::<Result<_, _>>()?;
    all(ids.into_iter().map(|id| client.act(id, action).map(|()| format!("job {id} {}", action.outcome()))))
}

/// Drains or undrains nodes.
pub(crate) fn run_on_nodes(args: &NodesArgs, action: NodeAction) -> anyhow::Result<()> {
    let client = args.server.client()?;
    let done = match action {
        NodeAction::Drain => "is draining: jobs move away, and nothing new starts there",
        NodeAction::Undrain => "is used again",
    };
    all(args.nodes.iter().map(|node| client.act_on_node(node, action).map(|()| format!("node {node} {done}"))))
}

/// Tells of each; the last failure is that of the command.
fn all(outcomes: impl Iterator<Item = Result<String, ClientError>>) -> anyhow::Result<()> {
    let mut failure: Option<ClientError> = None;
    for outcome in outcomes {
        match outcome {
            Ok(done) => output::note(&done),
            Err(error) => {
                if let Some(earlier) = failure.replace(error) {
                    output::complain(&earlier);
                }
            }
        }
    }
    failure.map_or(Ok(()), |error| Err(error.into()))
}
