use std::path::PathBuf;

use pollux_policy::PolicySettings;
use pollux_sim::Requests;

/// What is simulated: policies, workloads and the world they run in.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Policies, each with what to call it.
    pub policies: Vec<(String, PolicySettings)>,
    /// Files of jobs, or a cluster's log to draw from; one workload is generated where there are none.
    pub workloads: Vec<PathBuf>,
    /// Folder of measured applications; else the profiles that ship.
    pub traces: Option<PathBuf>,
    /// Nodes by GPUs per node, such as `16x4`, or a .toml file of node groups.
    pub cluster: String,
    /// Fewest and most nodes, which then come and go.
    pub autoscale: Option<NodeRange>,
    /// Seconds between scheduling rounds.
    pub interval_s: f64,
    /// Seconds a job stands still when its GPUs change.
    pub restart_delay_s: f64,
    /// The same where it is resized in place; otherwise a resize is a restart.
    pub resize_delay_s: Option<f64>,
    /// The same where a preempted job gets the same GPUs again.
    pub resume_delay_s: Option<f64>,
    /// Share of its speed a multi-node job loses on a node that hosts another.
    pub interference: f64,
    /// Whether users say how many epochs their jobs train.
    pub declare_epochs: bool,
    /// Failures per node and day.
    pub failures: f64,
    /// Seed of the moments of failure; else that of the workload.
    pub failure_seed: Option<u64>,
    /// Jobs to generate, or to draw from a log, at load 1.
    pub generate_jobs: u32,
    /// Multiplies jobs; those of a workload file are then drawn anew.
    pub load: Option<f64>,
    /// What users ask for, where jobs are generated or drawn from a log.
    pub requests: Requests,
    /// Each a workload of its own where workloads are generated or drawn; 0 where there are none.
    pub seeds: Vec<u64>,
    /// Whether to keep what the cluster and every job had over time; a page needs it and has it.
    pub series: bool,
    /// Simulations at once; else one per core.
    pub threads: Option<u16>,
    /// Folder of a page with everything drawn.
    pub report: Option<PathBuf>,
}

/// Fewest and most nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRange {
    /// Fewest.
    pub min: u32,
    /// Most.
    pub max: u32,
}

impl Default for SimOptions {
    /// The published world, and no policy yet.
    fn default() -> Self {
        Self {
            policies: Vec::new(),
            workloads: Vec::new(),
            traces: None,
            cluster: "16x4".to_owned(),
            autoscale: None,
            interval_s: 60.0,
            restart_delay_s: 30.0,
            resize_delay_s: None,
            resume_delay_s: None,
            interference: 0.0,
            declare_epochs: true,
            failures: 0.0,
            failure_seed: None,
            generate_jobs: 160,
            load: None,
            requests: Requests::Tuned,
            seeds: Vec::new(),
            series: false,
            threads: None,
            report: None,
        }
    }
}

impl SimOptions {
    pub(super) fn load(&self) -> f64 {
        self.load.unwrap_or(1.0)
    }

    pub(super) fn seeds(&self) -> &[u64] {
        if self.seeds.is_empty() { &[0] } else { &self.seeds }
    }

    /// Whether workloads that are given are drawn from, and not taken as they are.
    pub(super) fn resamples(&self) -> bool {
        self.load.is_some_and(|load| load != 1.0 || !self.seeds.is_empty())
    }
}
