mod table;

use std::path::PathBuf;

use clap::Args;
use pollux_api::{Change, HypotheticalJob, TrainsLike, WhatIfRequest};
use pollux_client::Client;
use pollux_job::JobSpec;
use pollux_model::GpuTypeName;

use super::LiveError;
use super::job_file::JobFile;
use super::lookup::job_id;
use super::server_args::ServerArgs;
use super::size_args::SizeArgs;
use crate::output::{self, OutputFormat};

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

    #[command(flatten, next_help_heading = "The new job")]
    size: SizeArgs,

    /// Add nodes by GPUs of each, and their type, such as 2x4 or 2x8:a100
    #[arg(long, value_name = "NxG[:TYPE]", value_parser = nodes)]
    add_nodes: Option<MoreNodes>,

    /// Drain a node
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
    pub(super) server: ServerArgs,
}

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
    changes.extend(args.add_nodes.clone().map(|MoreNodes { count, gpus, gpu_type }| {
        let gpu_type = gpu_type.map(|name| name.to_string());
        Change::AddNodes { count, gpus, gpu_type }
    }));
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
        changes.push(Change::Submit(hypothetical(trains_like, file, &args.size)));
    }
    Ok(changes)
}

/// What the options say of the new job, then what its file says. The rest is as the job that it trains like has it.
fn hypothetical(trains_like: TrainsLike, file: JobFile, size: &SizeArgs) -> HypotheticalJob {
    let says = |field: &str| file.says(field);
    let says_gpus = says("gpus_per_replica") || says("gpus");
    let [says_name, says_replicas, says_min, says_types, says_flexibility, says_priority] =
        ["name", "replicas", "replicas_min", "gpu_types", "flexibility", "priority"].map(says);
    // What starts the program and what happens after failures make no difference to a forecast. A new field has to be
    // sorted in here.
    let JobSpec {
        name,
        owner: _,
        command: _,
        working_dir: _,
        env: _,
        secrets: _,
        replicas,
        replicas_min,
        replicas_max,
        gpus_per_replica,
        cpus,
        memory,
        gpu_types,
        flexibility,
        pods_per: _,
        application: _,
        batch_size,
        priority,
        work,
        retries: _,
        time_limit,
        depends_on,
    } = file.spec;
    HypotheticalJob {
        trains_like,
        name: says_name.then_some(name),
        replicas: size.replicas.or(says_replicas.then_some(replicas)),
        replicas_min: size.replicas_min.or(says_min.then_some(replicas_min)),
        replicas_max: size.replicas_max.or(replicas_max),
        gpus_per_replica: size.gpus_per_replica.or(says_gpus.then_some(gpus_per_replica)),
        cpus: size.cpus.or(cpus),
        memory: size.memory.or(memory),
        gpu_types: size.gpu_types.clone().or(says_types.then_some(gpu_types)),
        flexibility: says_flexibility.then_some(flexibility),
        batch_size: size.batch_size.or(batch_size),
        priority: says_priority.then_some(priority),
        work: size.work().or(work),
        time_limit: size.time_limit.or(time_limit),
        depends_on,
    }
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
    let is_asked_for = args.submit.is_some() || args.size != SizeArgs::default();
    match like {
        None if is_asked_for => Err(LiveError::NoLikeness),
        None => Ok(None),
        Some(like) => Ok(Some(NewJob { like, file: JobFile::given(args.submit.as_deref())? })),
    }
}

/// Nodes that would be added.
#[derive(Clone, Debug, PartialEq)]
struct MoreNodes {
    count: u32,
    gpus: u32,
    gpu_type: Option<GpuTypeName>,
}

fn nodes(text: &str) -> Result<MoreNodes, &'static str> {
    let number = |text: &str| text.parse().ok().filter(|number| (1..=1_024).contains(number));
    let (shape, gpu_type) = match text.split_once(':') {
        None => (text, None),
        Some((shape, name)) => {
            let name =
                GpuTypeName::new(name).map_err(|_| "expected a type of GPU after the colon, such as 2x8:a100")?;
            (shape, Some(name))
        }
    };
    let shape = shape.split_once('x').and_then(|(count, gpus)| Some((number(count)?, number(gpus)?)));
    let expected =
        "expected nodes by GPUs of each, and their type after a colon, such as 2x4 or 2x8:a100, up to 1024x1024";
    let (count, gpus) = shape.ok_or(expected)?;
    Ok(MoreNodes { count, gpus, gpu_type })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_with_and_without_a_type() {
        let of = |text| nodes(text).map(|read| (read.count, read.gpus, read.gpu_type.map(|name| name.to_string())));
        assert_eq!(of("2x4"), Ok((2, 4, None)));
        assert_eq!(of("2x8:a100"), Ok((2, 8, Some("a100".to_owned()))));
        assert_eq!(of("1x1:NVIDIA L4: two"), Ok((1, 1, Some("NVIDIA L4: two".to_owned()))));
        for shape in ["", "2", "x", "2x0", "0x2", "2x1025", "-1x2", ":a100", "2xa100", "a100:2x8"] {
            let expected = "expected nodes by GPUs of each, and their type after a colon";
            assert!(of(shape).is_err_and(|message| message.starts_with(expected)), "{shape}");
        }
        for name in ["2x8:", "2x8: a100", "2x8:a\n100"] {
            assert!(of(name).is_err_and(|message| message.starts_with("expected a type of GPU")), "{name}");
        }
    }
}
