use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use pollux_lab::{NodeRange, SimOptions};
use pollux_sim::Requests;

use crate::output::OutputFormat;
use crate::usage::number;

/// What `pollux sim run` and `pollux sim compare` take. A negative number is a value, so that it is
/// refused as what it is; in a list only a hyphen tells it.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct SimArgs {
    /// Policies: pollux, castor, sia, gavel, optimus, optimus-oracle, tiresias, themis, gandiva, antman, slaq, srtf, fifo, or .toml
    /// files with settings of one
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(super) policy: Vec<String>,

    /// Workloads: CSV files, or a cluster's log to draw from [default: generate one]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    workload: Vec<PathBuf>,

    /// Measured applications, a folder each [default: the profiles that ship]
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,

    /// Nodes by GPUs per node, or a .toml file of node groups
    #[arg(long, value_name = "NxG", default_value = "16x4")]
    cluster: String,

    /// Add and remove nodes of the cluster's type as jobs need them: minimum and maximum
    #[arg(long, value_name = "MIN..MAX", value_parser = node_range)]
    autoscale: Option<NodeRange>,

    /// Seconds between scheduling rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("expected seconds from 1 to 86400"))]
    interval: f64,

    /// Seconds a job stands still when its GPUs change
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("expected seconds from 0 to 86400"))]
    restart_delay: f64,

    /// Seconds a job stands still when it is resized in place [default: that of a restart]
    #[arg(long, value_name = "SECONDS")]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("expected seconds from 0 to 86400"))]
    resize_delay: Option<f64>,

    /// Seconds a preempted job stands still when it gets the same GPUs again [default: that of a restart]
    #[arg(long, value_name = "SECONDS")]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("expected seconds from 0 to 86400"))]
    resume_delay: Option<f64>,

    /// Share of its speed a multi-node job loses on a node that hosts another
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("expected a share from 0 to 0.99"))]
    interference: f64,

    /// Whether users say how many epochs their jobs train
    #[arg(long, value_enum, value_name = "yes|no", default_value_t = YesNo::Yes, hide_possible_values = true)]
    declare_epochs: YesNo,

    /// Failures per node and day
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("expected numbers from 0 to 1000"))]
    failures: f64,

    /// Seed of the moments of failure [default: that of the workload]
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, value_parser = number::<u64>(SEEDS))]
    failure_seed: Option<u64>,

    /// Jobs to generate, or to draw from a log, at load 1
    #[arg(long, value_name = "N", default_value_t = 160)]
    #[arg(allow_negative_numbers = true, value_parser = number::<u32>("expected whole numbers from 1 to 100000"))]
    generate_jobs: u32,

    /// Multiplies jobs: 2 is twice as many in the same time; those of a workload file are drawn anew [default: 1]
    #[arg(long, value_name = "X")]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("expected numbers above 0"))]
    load: Option<f64>,

    /// What users ask for, where jobs are generated or drawn from a log: measured beforehand, or guessed
    #[arg(long, value_name = "tuned|realistic", default_value = Requests::Tuned.name(), value_parser = requests())]
    #[arg(hide_possible_values = true)]
    requests: Requests,

    /// Seeds, each a workload of its own where workloads are generated or drawn [default: 0]
    #[arg(long, value_name = "SEED,...", value_delimiter = ',')]
    #[arg(allow_hyphen_values = true, value_parser = number::<u64>(SEEDS))]
    seed: Vec<u64>,

    /// Simulations to run at once [default: one per core]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = threads)]
    jobs: Option<u16>,

    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    pub(crate) output: OutputFormat,

    /// Also draw it: one page, DIR/index.html
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

impl SimArgs {
    /// What is asked for, but for the policies, which are not read yet.
    pub(super) fn options(&self) -> SimOptions {
        SimOptions {
            policies: Vec::new(),
            workloads: self.workload.clone(),
            traces: self.traces.clone(),
            cluster: self.cluster.clone(),
            autoscale: self.autoscale,
            interval_s: self.interval,
            restart_delay_s: self.restart_delay,
            resize_delay_s: self.resize_delay,
            resume_delay_s: self.resume_delay,
            interference: self.interference,
            declare_epochs: self.declare_epochs == YesNo::Yes,
            failures: self.failures,
            failure_seed: self.failure_seed,
            generate_jobs: self.generate_jobs,
            load: self.load,
            requests: self.requests,
            seeds: self.seed.clone(),
            series: false,
            threads: self.jobs,
            report: self.report.clone(),
        }
    }
}

/// A question with two answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum YesNo {
    /// It is so.
    Yes,
    /// It is not.
    No,
}

const SEEDS: &str = "expected whole numbers from 0 to 18446744073709551615";

fn requests() -> impl TypedValueParser<Value = Requests> {
    PossibleValuesParser::new(Requests::ALL.map(Requests::name))
        .map(|name| Requests::named(&name).expect("only names of theirs are possible"))
}

fn node_range(text: &str) -> Result<NodeRange, &'static str> {
    let parsed = text.split_once("..").and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
    let range = parsed.map(|(min, max)| NodeRange { min, max });
    range.ok_or("expected the fewest and the most nodes, such as 1..16")
}

pub(crate) fn threads(text: &str) -> Result<u16, &'static str> {
    let threads = text.parse().ok().filter(|threads| (1..=1024).contains(threads));
    threads.ok_or("expected whole numbers from 1 to 1024")
}

const AFTER_HELP: &str = "\
Workloads are told apart by their columns, others are ignored:
  name,time,application,num_replicas,batch_size   jobs in order of time (seconds)
  timestamp,duration,num_gpus,gpu_time            a cluster's log; jobs of its sizes are drawn from it
Applications: bert, cifar10, deepspeech2, imagenet, ncf, yolov3.
The same arguments give the same bytes, whatever --jobs says.";
