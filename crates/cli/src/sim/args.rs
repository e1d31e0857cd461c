use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pollux_sim::Requests;
use serde::Deserialize;

use crate::output::OutputFormat;
use crate::usage::number;

/// What `pollux sim run` and `pollux sim compare` take. A negative number is a value, so that it is
/// refused as what it is; in a list only a hyphen tells it.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct SimArgs {
    /// Policies: pollux, castor, optimus, optimus-oracle, tiresias, themis, gandiva, antman, slaq, srtf, fifo, or .toml
    /// files with settings of one
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(super) policy: Vec<String>,

    /// Workloads: CSV files, or a cluster's log to draw from [default: generate one]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(super) workload: Vec<PathBuf>,

    /// Measured applications, a folder each [default: the profiles that ship]
    #[arg(long, value_name = "DIR")]
    pub(super) traces: Option<PathBuf>,

    /// Nodes by GPUs per node, or a .toml file of node groups
    #[arg(long, value_name = "NxG", default_value = "16x4")]
    pub(super) cluster: String,

    /// Buy and give back nodes of the cluster's kind, as many as jobs are worth: fewest and most
    #[arg(long, value_name = "MIN..MAX", value_parser = node_range)]
    pub(super) autoscale: Option<NodeRange>,

    /// Seconds between scheduling rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("accepted are seconds from 1 to 86400"))]
    pub(super) interval: f64,

    /// Seconds a job stands still when its GPUs change
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("accepted are seconds from 0 to 86400"))]
    pub(super) restart_delay: f64,

    /// Seconds a preempted job stands still when it gets the same GPUs again [default: that of a restart]
    #[arg(long, value_name = "SECONDS")]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("accepted are seconds from 0 to 86400"))]
    pub(super) resume_delay: Option<f64>,

    /// Share of its speed a multi-node job loses on a node that hosts another
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("accepted is a share from 0 to 0.99"))]
    pub(super) interference: f64,

    /// Whether users say how many epochs their jobs train
    #[arg(long, value_enum, value_name = "yes|no", default_value_t = YesNo::Yes, hide_possible_values = true)]
    pub(super) declare_epochs: YesNo,

    /// Failures per node and day
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("accepted are numbers from 0 to 1000"))]
    pub(super) failures: f64,

    /// Seed of the moments of failure [default: that of the workload]
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, value_parser = number::<u64>(SEEDS))]
    pub(super) failure_seed: Option<u64>,

    /// Jobs to generate, or to draw from a log, at load 1
    #[arg(long, value_name = "N", default_value_t = 160)]
    #[arg(allow_negative_numbers = true, value_parser = number::<u32>("accepted are whole numbers from 1 to 100000"))]
    pub(super) generate_jobs: u32,

    /// Multiplies jobs: 2 is twice as many in the same time; those of a workload file are drawn anew [default: 1]
    #[arg(long, value_name = "X")]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("accepted are numbers above 0"))]
    load: Option<f64>,

    /// What users ask for, where jobs are generated or drawn from a log: measured beforehand, or guessed
    #[arg(long, value_enum, value_name = "tuned|realistic", default_value_t = RequestKind::Tuned)]
    #[arg(hide_possible_values = true)]
    pub(super) requests: RequestKind,

    /// Seeds, each a workload of its own where workloads are generated or drawn [default: 0]
    #[arg(long, value_name = "SEED,...", value_delimiter = ',')]
    #[arg(allow_hyphen_values = true, value_parser = number::<u64>(SEEDS))]
    seed: Vec<u64>,

    /// Simulations to run at once [default: one per core]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = threads)]
    pub(super) jobs: Option<u16>,

    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    pub(crate) output: OutputFormat,

    /// Also draw it: one page, DIR/index.html
    #[arg(long, value_name = "DIR")]
    pub(super) report: Option<PathBuf>,
}

/// Fewest and most nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeRange {
    pub(super) min: u32,
    pub(super) max: u32,
}

impl SimArgs {
    pub(super) fn load(&self) -> f64 {
        self.load.unwrap_or(1.0)
    }

    pub(super) fn seeds(&self) -> &[u64] {
        if self.seed.is_empty() { &[0] } else { &self.seed }
    }

    /// Whether workloads that are given are drawn from, and not taken as they are.
    pub(super) fn resamples(&self) -> bool {
        self.load.is_some_and(|load| load != 1.0 || !self.seed.is_empty())
    }
}

/// How users come to what they ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RequestKind {
    /// They measured their job.
    #[default]
    Tuned,
    /// They guess, as in a cluster's log.
    Realistic,
}

impl RequestKind {
    /// As it is written.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tuned => "tuned",
            Self::Realistic => "realistic",
        }
    }

    pub(crate) const fn requests(self) -> Requests {
        match self {
            Self::Tuned => Requests::Tuned,
            Self::Realistic => Requests::Realistic,
        }
    }
}

/// A question with two answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum YesNo {
    /// It is so.
    Yes,
    /// It is not.
    No,
}

const SEEDS: &str = "accepted are whole numbers from 0 to 18446744073709551615";

fn node_range(text: &str) -> Result<NodeRange, &'static str> {
    let parsed = text.split_once("..").and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
    let range = parsed.map(|(min, max)| NodeRange { min, max });
    range.ok_or("accepted are the fewest and the most nodes, such as 1..16")
}

pub(crate) fn threads(text: &str) -> Result<u16, &'static str> {
    let threads = text.parse().ok().filter(|threads| (1..=1024).contains(threads));
    threads.ok_or("accepted are whole numbers from 1 to 1024")
}

const AFTER_HELP: &str = "\
Workloads are told apart by their columns, others are ignored:
  name,time,application,num_replicas,batch_size   jobs in order of time (seconds)
  timestamp,duration,num_gpus,gpu_time            a cluster's log; jobs of its sizes are drawn from it
Applications: bert, cifar10, deepspeech2, imagenet, ncf, yolov3.
The same arguments give the same bytes, whatever --jobs says.";
