use std::collections::BTreeMap;
use std::io::Write;
use std::path::{self, PathBuf};

use clap::Args;
use pollux_api::{Flexibility, Job, SubmitRequest, Work};

use super::job_file::JobFile;
use super::priority;
use super::server_args::ServerArgs;
use super::{LiveError, watch};
use crate::output::{self, ListFormat, one_line};
use crate::usage::whole;

/// What `pollux submit` takes. Options override what the file says.
#[derive(Args, Debug)]
pub(crate) struct SubmitArgs {
    /// Program and arguments, the same for every replica
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,

    /// A file that describes the job: .yaml, .toml or .json, or - for stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// For people [default: the name of the program]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Replicas to begin with, each on a GPU of its own; a rigid job keeps exactly as many [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=u32::MAX, FROM_ONE))]
    replicas: Option<u32>,

    /// Fewest replicas it can run with [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=u32::MAX, FROM_ONE))]
    replicas_min: Option<u32>,

    /// Most replicas it may have
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=u32::MAX, FROM_ONE))]
    replicas_max: Option<u32>,

    /// It gets exactly what it asks for, and keeps it
    #[arg(long, conflicts_with = "non_preemptible")]
    rigid: bool,

    /// Its size may be chosen, but once started it keeps its GPUs
    #[arg(long)]
    non_preemptible: bool,

    /// Total batch, for policies that leave it to users
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=u32::MAX, FROM_ONE))]
    batch_size: Option<u32>,

    /// Higher goes first, where the policy knows priorities; below 0 it uses what others leave
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    #[arg(value_parser = whole(i32::MIN..=i32::MAX, "accepted are whole numbers from -2147483648 to 2147483647"))]
    priority: Option<i32>,

    /// Times it trains through its data
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with = "baseline_steps")]
    #[arg(value_parser = whole(1..=u32::MAX, FROM_ONE))]
    epochs: Option<u32>,

    /// Steps it would train at the baseline batch
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole(1..=u64::MAX, "accepted are whole numbers from 1"))]
    baseline_steps: Option<u64>,

    /// Failures after which it is tried again [default: 3]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole(0..=u32::MAX, "accepted are whole numbers from 0 to 4294967295"))]
    retries: Option<u32>,

    /// A variable of the program, besides those of the server
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    environment: Vec<(String, String)>,

    /// Where the program starts [default: here]
    #[arg(long, value_name = "DIR")]
    working_dir: Option<PathBuf>,

    /// Show its phases and what it writes until it has ended; Ctrl-C leaves it running
    #[arg(long)]
    watch: bool,

    /// Print for people, for programs, or only its number
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = ListFormat::Table)]
    output: ListFormat,

    #[command(flatten)]
    server: ServerArgs,
}

const FROM_ONE: &str = "accepted are whole numbers from 1 to 4294967295";

/// Hands in a job.
pub(crate) fn run(args: &SubmitArgs) -> anyhow::Result<()> {
    let request = request(args)?;
    let client = args.server.client()?;
    let job = client.submit(&request)?;
    output::print_list(args.output, &job, [job.id].into_iter(), |out| {
        writeln!(out, "job {} {} is {}", job.id, one_line(&job.name), job.phase.word())
    })?;
    if args.watch {
        return watch::run(&client, job.id);
    }
    if matches!(args.output, ListFormat::Table) {
        if let Some(meaning) = priority::meaning(&client, request.priority) {
            output::note(&format!("priority {}: {meaning}", request.priority));
        }
        output::note(&next_steps(&job));
    }
    Ok(())
}

fn next_steps(job: &Job) -> String {
    let id = job.id;
    format!("`pollux logs -f {id}` shows what it writes, `pollux explain {id}` why it has the GPUs it has")
}

/// What the file says, and what the options say instead.
fn request(args: &SubmitArgs) -> Result<SubmitRequest, LiveError> {
    let file = JobFile::given(args.file.as_deref())?;
    let given = (!args.command.is_empty()).then(|| args.command.clone());
    let command = given.or(file.command).filter(|command| !command.is_empty()).ok_or(LiveError::NoCommand)?;
    let flexibility = match (args.rigid, args.non_preemptible) {
        (true, _) => Some(Flexibility::Rigid),
        (false, true) => Some(Flexibility::NonPreemptible),
        (false, false) => file.flexibility,
    };
    let epochs = args.epochs.map(Work::Epochs);
    let work = epochs.or(args.baseline_steps.map(Work::BaselineSteps)).or(file.work);
    let mut environment: BTreeMap<String, String> = file.environment;
    environment.extend(args.environment.iter().cloned());
    let replicas_min = args.replicas_min.or(file.replicas_min).unwrap_or(1);
    let working_dir = absolute(args.working_dir.clone().or(file.working_dir).unwrap_or_default())?;
    let plain = SubmitRequest::new(command, &working_dir);
    Ok(SubmitRequest {
        name: args.name.clone().or(file.name),
        environment,
        replicas_requested: args.replicas.or(file.replicas_requested).unwrap_or(replicas_min),
        replicas_min,
        replicas_max: args.replicas_max.or(file.replicas_max),
        flexibility: flexibility.unwrap_or_default(),
        batch_size: args.batch_size.or(file.batch_size),
        priority: args.priority.or(file.priority).unwrap_or(plain.priority),
        work,
        retries_max: args.retries.or(file.retries_max).unwrap_or(plain.retries_max),
        ..plain
    })
}

/// The folder as the server has to know it.
fn absolute(folder: PathBuf) -> Result<String, LiveError> {
    let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
    let absolute = path::absolute(&folder).unwrap_or(folder);
    absolute.into_os_string().into_string().map_err(|name| LiveError::WorkingDir(name.into()))
}

fn variable(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("accepted is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
