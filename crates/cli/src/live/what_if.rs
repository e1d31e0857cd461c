mod table;

use std::path::PathBuf;

use clap::Args;
use pollux_api::{Change, HypotheticalJob, TrainsLike, WhatIfRequest};
use pollux_client::Client;
use pollux_job::Work;

use super::LiveError;
use super::job_file::JobFile;
use super::lookup::job_id;
use super::server_args::ServerArgs;
use crate::output::{self, OutputFormat};
use crate::usage::whole;

/// What `pollux what-if` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Nothing is changed: the scheduler simulates its cluster as it is, and with all changes made now. Without changes it says
when jobs will be complete.")]
pub(crate) struct WhatIfArgs {
    /// Submit a job that trains like this one, by number or name, live or ended
    #[arg(long, value_name = "JOB", conflicts_with = "application")]
    like: Option<String>,

    /// Submit a job that trains like an application: bert, cifar10, deepspeech2, imagenet, ncf or yolov3
    #[arg(long, value_name = "NAME")]
    application: Option<String>,

    /// What the new job asks for, in a file as `pollux submit` takes it
    #[arg(long, value_name = "FILE")]
    submit: Option<PathBuf>,

    /// Replicas that the new job begins with
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=u32::MAX, FROM_ONE))]
    replicas: Option<u32>,

    /// Fewest replicas that the new job can run with
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=u32::MAX, FROM_ONE))]
    replicas_min: Option<u32>,

    /// Most replicas that the new job may have
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=u32::MAX, FROM_ONE))]
    replicas_max: Option<u32>,

    /// Times that the new job trains through its data
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with = "baseline_steps")]
    #[arg(value_parser = whole(1..=u32::MAX, FROM_ONE))]
    epochs: Option<u32>,

    /// Steps that the new job would train at the baseline batch
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole(1..=u64::MAX, "accepted are whole numbers from 1"))]
    baseline_steps: Option<u64>,

    /// Add nodes by GPUs of each, such as 2x4
    #[arg(long, value_name = "NxG", value_parser = nodes)]
    add_nodes: Option<(u32, u32)>,

    /// Empty a node, and use it no more
    #[arg(long, value_name = "NODE")]
    drain: Vec<String>,

    /// Let another policy decide, by name
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,

    /// End a job, by number or name
    #[arg(long, value_name = "JOB")]
    cancel: Vec<String>,

    /// Set a job aside, by number or name
    #[arg(long, value_name = "JOB")]
    pause: Vec<String>,

    /// Let a paused job go on, by number or name
    #[arg(long, value_name = "JOB")]
    resume: Vec<String>,

    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    output: OutputFormat,

    #[command(flatten)]
    server: ServerArgs,
}

const FROM_ONE: &str = "accepted are whole numbers from 1 to 4294967295";

/// Asks when jobs would be complete.
pub(crate) fn run(args: &WhatIfArgs) -> anyhow::Result<()> {
    let job = job(args)?;
    let client = args.server.client()?;
    let request = WhatIfRequest { changes: changes(args, job, &client)? };
    let answer = client.what_if(&request)?;
    if matches!(args.output, OutputFormat::Table) {
        for note in &answer.notes {
            output::note(note);
        }
    }
    output::print(args.output, &answer, |out| table::write(&answer, !request.changes.is_empty(), out))
}

/// Machines and policy first, so that a new job finds them as they would be.
fn changes(args: &WhatIfArgs, job: Option<NewJob>, client: &Client) -> anyhow::Result<Vec<Change>> {
    let mut changes = Vec::new();
    changes.extend(args.policy.clone().map(|name| Change::Policy { name }));
    changes.extend(args.add_nodes.map(|(count, gpus)| Change::AddNodes { count, gpus, gpu_type: None }));
    changes.extend(args.drain.iter().cloned().map(|node| Change::Drain { node }));
    for job in &args.cancel {
        changes.push(Change::Cancel { job: job_id(client, job)? });
    }
    for job in &args.pause {
        changes.push(Change::Pause { job: job_id(client, job)? });
    }
    for job in &args.resume {
        changes.push(Change::Resume { job: job_id(client, job)? });
    }
    if let Some(NewJob { like, file }) = job {
        let trains_like = match like {
            Like::Job(job) => TrainsLike::Job(job_id(client, &job)?),
            Like::Application(name) => TrainsLike::Application(name),
        };
        let epochs = args.epochs.map(Work::Epochs);
        changes.push(Change::Submit(HypotheticalJob {
            trains_like,
            name: file.given_value("name", file.spec.name.clone()),
            replicas: args.replicas.or(file.given_value("replicas", file.spec.replicas)),
            replicas_min: args.replicas_min.or(file.given_value("replicas_min", file.spec.replicas_min)),
            replicas_max: args.replicas_max.or(file.spec.replicas_max),
            flexibility: file.given_value("flexibility", file.spec.flexibility),
            priority: file.given_value("priority", file.spec.priority),
            work: epochs.or(args.baseline_steps.map(Work::BaselineSteps)).or(file.spec.work),
        }));
    }
    Ok(changes)
}

/// A job that is not submitted.
struct NewJob {
    like: Like,
    file: JobFile,
}

enum Like {
    Job(String),
    Application(String),
}

/// The new job, if one is asked for; its file alone does not tell how it trains.
fn job(args: &WhatIfArgs) -> Result<Option<NewJob>, LiveError> {
    let like = args.like.clone().map(Like::Job).or(args.application.clone().map(Like::Application));
    let numbers = [args.replicas, args.replicas_min, args.replicas_max, args.epochs];
    let is_asked_for = args.submit.is_some() || args.baseline_steps.is_some() || numbers.iter().any(Option::is_some);
    match like {
        None if is_asked_for => Err(LiveError::NoLikeness),
        None => Ok(None),
        Some(like) => Ok(Some(NewJob { like, file: JobFile::given(args.submit.as_deref())? })),
    }
}

fn nodes(text: &str) -> Result<(u32, u32), &'static str> {
    let number = |text: &str| text.parse().ok().filter(|number| (1..=1_024).contains(number));
    let shape = text.split_once('x').and_then(|(count, gpus)| Some((number(count)?, number(gpus)?)));
    shape.ok_or("accepted are nodes by GPUs of each, such as 2x4, up to 1024x1024")
}
