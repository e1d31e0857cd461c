use std::env;
use std::io::Write;
use std::path::{self, PathBuf};

use clap::Args;
use pollux_api::Job;
use pollux_job::{Dependency, JobSpec, Secret};

use super::export::{Export, Exported};
use super::job_file::JobFile;
use super::server_args::ServerArgs;
use super::size_args::SizeArgs;
use super::treatment_args::TreatmentArgs;
use super::{LiveError, watch};
use super::{priority, room};
use crate::output::{self, ListFormat, one_line};

/// What `pollux submit` takes. Options override what the file says.
#[derive(Args, Debug)]
pub(crate) struct SubmitArgs {
    /// Program and arguments, the same for every replica
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,

    /// A file that describes the job: .yaml, .toml or .json, or - for stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// A name for the job [default: the name of the program]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    size: SizeArgs,

    #[command(flatten)]
    treatment: TreatmentArgs,

    /// Start after these jobs succeed, by number; NUMBER:end waits until they end in any way
    #[arg(long, value_name = "JOB", value_delimiter = ',', allow_hyphen_values = true)]
    depends_on: Vec<Dependency>,

    /// An environment variable for the program
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,

    /// An environment variable whose value is never shown; NAME alone takes the current value
    #[arg(long, alias = "secret", value_name = "NAME[=VALUE]", value_parser = secret)]
    secrets: Vec<(String, String)>,

    /// Current variables to pass on: all, none, or names [default: PATH, virtual environment, language]
    #[arg(long, value_name = "WHICH")]
    export: Option<Export>,

    /// Where the program starts [default: the current folder]
    #[arg(long, value_name = "DIR")]
    working_dir: Option<PathBuf>,

    /// Only for pods, of which there are none here
    #[arg(long = "pods-per", hide = true, value_parser = no_pods)]
    _pods_per: Option<String>,

    /// Follow its phases and logs until it ends; Ctrl-C leaves it running
    #[arg(long)]
    watch: bool,

    /// Print for people, for programs, or only its number
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = ListFormat::Table)]
    output: ListFormat,

    #[command(flatten)]
    server: ServerArgs,
}

/// Submits a job.
pub(crate) fn run(args: &SubmitArgs) -> anyhow::Result<()> {
    let spec = spec(args)?;
    let client = args.server.client()?;
    let job = client.submit(&spec)?;
    output::print_list(args.output, &job, [job.id].into_iter(), |out| {
        writeln!(out, "job {} {} is {}", job.id, one_line(&job.name), job.phase.word())
    })?;
    if matches!(args.output, ListFormat::Table)
        && let Some(warning) = room::warning(&client, &spec)
    {
        output::note(&warning);
    }
    if args.watch {
        return watch::run(&client, job.id);
    }
    if matches!(args.output, ListFormat::Table) {
        if let Some(meaning) = priority::meaning(&client, spec.priority) {
            output::note(&format!("priority {}: {meaning}", spec.priority));
        }
        output::note(&next_steps(&job));
    }
    Ok(())
}

fn next_steps(job: &Job) -> String {
    let id = job.id;
    format!("`pollux logs -f {id}` follows its logs, `pollux explain {id}` explains its GPUs")
}

fn no_pods(_: &str) -> Result<String, &'static str> {
    Err("expected it with kubectl pollux submit alone: here replicas are processes, not pods")
}

/// What the file says, and what the options say instead.
fn spec(args: &SubmitArgs) -> Result<JobSpec, LiveError> {
    let file = JobFile::given(args.file.as_deref())?;
    let says_replicas = args.size.replicas.is_some() || file.says("replicas");
    let mut spec = file.spec;
    override_with(&mut spec.name, args.name.clone());
    override_with(&mut spec.command, (!args.command.is_empty()).then(|| args.command.clone()));
    if spec.command.is_empty() {
        return Err(LiveError::NoCommand);
    }
    args.size.apply(&mut spec);
    if !says_replicas {
        spec.replicas = spec.replicas_min;
    }
    args.treatment.apply(&mut spec);
    override_with(&mut spec.depends_on, (!args.depends_on.is_empty()).then(|| args.depends_on.clone()));
    spec.working_dir = absolute(args.working_dir.clone().unwrap_or(spec.working_dir))?;
    add_variables(&mut spec, args);
    Ok(spec)
}

/// Options come before the file, and both before what is exported.
fn add_variables(spec: &mut JobSpec, args: &SubmitArgs) {
    for (name, value) in &args.env {
        spec.secrets.remove(name);
        spec.env.insert(name.clone(), value.clone());
    }
    for (name, value) in &args.secrets {
        spec.env.remove(name);
        spec.secrets.insert(name.clone(), Secret::new(value.clone()));
    }
    let Exported { env, secrets } = args.export.clone().unwrap_or_default().collect();
    for (name, value) in env {
        if !spec.secrets.contains_key(&name) {
            spec.env.entry(name).or_insert(value);
        }
    }
    for (name, value) in secrets {
        if !spec.env.contains_key(&name) {
            spec.secrets.entry(name).or_insert(value);
        }
    }
}

fn override_with<T>(field: &mut T, option: Option<T>) {
    if let Some(value) = option {
        *field = value;
    }
}

/// The folder as the server has to know it.
fn absolute(folder: PathBuf) -> Result<PathBuf, LiveError> {
    let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
    let absolute = path::absolute(&folder).unwrap_or(folder);
    if absolute.to_str().is_none() { Err(LiveError::WorkingDir(absolute)) } else { Ok(absolute) }
}

pub(crate) fn variable(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn secret(text: &str) -> Result<(String, String), String> {
    if text.contains('=') {
        return variable(text).map_err(str::to_owned);
    }
    let value = env::var(text)
        .map_err(|_| format!("{text} is not set here; expected NAME=VALUE, or a variable that is set"))?;
    Ok((text.to_owned(), value))
}
