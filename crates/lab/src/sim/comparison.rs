use std::fs;
use std::path::Path;

use pollux_policy::{AutoscalerSettings, PolicySettings};
use pollux_sim::{ApplicationSet, Autoscale, ClusterSpec, Failures, NodeGroup, SimulationSettings};
use serde::Serialize;

use super::SimError;
use super::options::{NodeRange, SimOptions};
use super::workloads::{Scenario, Seeded, repeated, scenarios};

/// Everything that decides the outcome: policies, workloads and the world they run in.
pub(super) struct Comparison {
    pub(super) scenarios: Vec<Scenario>,
    /// One per policy, for the scenario's own seed of failures to be filled in.
    pub(super) settings: Vec<SimulationSettings>,
    pub(super) shown: ShownSettings,
    pub(super) notes: Vec<String>,
    failure_seed: Option<u64>,
}

/// Settings as reports show them.
#[derive(Clone, Debug, Serialize)]
pub struct ShownSettings {
    /// As given; with the fewest and the most nodes where they come and go.
    pub cluster: String,
    /// In all.
    pub gpus: u64,
    /// What a file said; a shape says it all.
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<NodeGroup>>,
    /// What jobs really do.
    pub physics: String,
    /// Seconds between scheduling rounds.
    pub interval_s: f64,
    /// Seconds a job stands still when its GPUs change.
    pub restart_delay_s: f64,
    /// Where jobs are resized in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resize_delay_s: Option<f64>,
    /// Where a preempted job goes on sooner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_delay_s: Option<f64>,
    /// Share of its speed a multi-node job loses on a node that hosts another.
    pub interference: f64,
    /// Whether users say how many epochs their jobs train.
    pub declare_epochs: bool,
    /// How often nodes fail.
    pub failures_per_node_day: f64,
    /// Where nodes come and go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscale: Option<Autoscale>,
    /// Where nodes fail at moments of their own, and not those of the workload's seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_seed: Option<u64>,
    /// Where jobs are generated or drawn.
    #[serde(flatten)]
    pub random_jobs: Option<RandomJobs>,
}

/// How many jobs were asked for, and what they ask for.
#[derive(Clone, Debug, Serialize)]
pub struct RandomJobs {
    /// None where they are drawn from workloads that are given, as many as those have.
    #[serde(skip_serializing_if = "Option::is_none")]
    generate_jobs: Option<u32>,
    load: f64,
    /// Where they are not those of the workloads that are given.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'static str>,
}

impl RandomJobs {
    fn new(options: &SimOptions, scenarios: &[Scenario]) -> Option<Self> {
        let are = |seeded| scenarios.iter().any(|scenario| scenario.seeded == seeded);
        let generated = are(Seeded::Jobs);
        (generated || are(Seeded::Draws)).then(|| Self {
            generate_jobs: generated.then_some(options.generate_jobs),
            load: options.load(),
            requests: generated.then_some(options.requests.name()),
        })
    }

    /// As people read it.
    pub fn text(&self) -> String {
        let jobs = self.generate_jobs.map_or_else(String::new, |jobs| format!("{jobs} "));
        let requests = self.requests.filter(|requests| *requests != "tuned");
        let requests = requests.map_or_else(String::new, |requests| format!(" with {requests} requests"));
        format!("{jobs}jobs at load {}{requests}", self.load)
    }
}

impl ShownSettings {
    fn new(options: &SimOptions, cluster: &ClusterSpec, scenarios: &[Scenario]) -> Self {
        let is_file = Path::new(&options.cluster).extension().is_some_and(|extension| extension == "toml");
        let node_gpus = cluster.groups().first().map_or(0, |group| group.gpus);
        let range = |range: NodeRange| format!("{}..{}x{node_gpus}", range.min, range.max);
        Self {
            cluster: options.autoscale.map_or_else(|| options.cluster.clone(), range),
            gpus: cluster.gpus(),
            groups: is_file.then(|| cluster.groups().to_vec()),
            physics: options
                .traces
                .as_ref()
                .map_or("parametric profiles".to_owned(), |path| path.display().to_string()),
            interval_s: options.interval_s,
            restart_delay_s: options.restart_delay_s,
            resize_delay_s: options.resize_delay_s,
            resume_delay_s: options.resume_delay_s,
            interference: options.interference,
            declare_epochs: options.declare_epochs,
            failures_per_node_day: options.failures,
            autoscale: options.autoscale.map(autoscale),
            failure_seed: options.failure_seed.filter(|_| options.failures > 0.0),
            random_jobs: RandomJobs::new(options, scenarios),
        }
    }

    /// The cluster, its groups where a file named them, and its GPUs.
    pub fn cluster_text(&self) -> String {
        let group = |group: &NodeGroup| {
            let gpu_type = group.gpu_type.as_ref().map_or_else(String::new, |gpu_type| format!(" {gpu_type}"));
            format!("{}x{}{gpu_type}, ", group.count, group.gpus)
        };
        let groups: String = self.groups.iter().flatten().map(group).collect();
        format!("{} ({groups}{} GPUs)", self.cluster, self.gpus)
    }
}

impl Comparison {
    /// Reads what the arguments name, and refuses what cannot be simulated.
    pub(super) fn resolve(options: &SimOptions, applications: &ApplicationSet) -> Result<Self, SimError> {
        let cluster = cluster(options)?;
        check_policies(&options.policies)?;
        let mut notes = Vec::new();
        let gpus = u32::try_from(cluster.gpus()).unwrap_or(u32::MAX);
        let scenarios = scenarios(options, applications, gpus, &mut notes)?;
        let shown = ShownSettings::new(options, &cluster, &scenarios);
        let settings = |(label, policy): &(String, PolicySettings)| SimulationSettings {
            label: label.clone(),
            interval_s: options.interval_s,
            restart_delay_s: options.restart_delay_s,
            resize_delay_s: options.resize_delay_s,
            resume_delay_s: options.resume_delay_s,
            interference: options.interference,
            declare_epochs: shown.declare_epochs,
            failures: Failures { per_node_day: options.failures, ..Failures::NONE },
            autoscale: shown.autoscale,
            record_series: options.series || options.report.is_some(),
            ..SimulationSettings::new(policy.clone(), cluster.clone())
        };
        let settings = options.policies.iter().map(settings).collect();
        Ok(Self { scenarios, settings, shown, notes, failure_seed: options.failure_seed })
    }

    /// Every simulation to run: scenario by scenario, policy by policy.
    pub(super) fn runs(&self) -> Vec<(&Scenario, SimulationSettings)> {
        let run = |scenario: &'_ Scenario, settings: &SimulationSettings| {
            let mut settings = settings.clone();
            settings.failures.seed = self.failure_seed.unwrap_or(scenario.seed);
            settings
        };
        let of_scenario = |scenario| self.settings.iter().map(move |settings| (scenario, run(scenario, settings)));
        self.scenarios.iter().flat_map(of_scenario).collect()
    }
}

/// The cluster; where nodes come and go, with as many as there may be.
fn cluster(options: &SimOptions) -> Result<ClusterSpec, SimError> {
    let given = ClusterSpec::read(&options.cluster).map_err(SimError::Cluster)?;
    match (options.autoscale, given.groups()) {
        (Some(range), [group]) if range.max > 0 => {
            ClusterSpec::new(vec![NodeGroup { count: range.max, ..group.clone() }]).map_err(SimError::Cluster)
        }
        _ => Ok(given), // The simulator says what is wrong with groups that are not alike, or a range of none.
    }
}

fn autoscale(range: NodeRange) -> Autoscale {
    let settings = AutoscalerSettings { nodes_min: range.min, nodes_max: range.max, ..AutoscalerSettings::default() };
    Autoscale { settings, ..Autoscale::default() }
}

/// One or more, no two called the same.
fn check_policies(policies: &[(String, PolicySettings)]) -> Result<(), SimError> {
    let labels: Vec<&String> = policies.iter().map(|(label, _)| label).collect();
    match repeated(&labels) {
        Some(&label) => Err(SimError::Repeated { option: "policy", value: label.clone() }),
        None if labels.is_empty() => Err(SimError::NoPolicy),
        None => Ok(()),
    }
}

/// The profiles that ship, or measured ones.
pub(super) fn applications(options: &SimOptions) -> Result<ApplicationSet, SimError> {
    let Some(path) = &options.traces else { return Ok(ApplicationSet::parametric()) };
    if let Err(reason) = fs::read_dir(path) {
        return Err(SimError::Traces { path: path.clone(), reason });
    }
    ApplicationSet::recorded(path).map_err(SimError::Physics)
}
