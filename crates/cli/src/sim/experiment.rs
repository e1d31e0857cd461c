use std::fs;
use std::path::Path;

use pollux_policy::{AutoscalerSettings, PolicySettings};
use pollux_sim::{ApplicationSet, Autoscale, ClusterSpec, Failures, NodeGroup, SimulationSettings};
use serde::Serialize;

use super::SimError;
use super::args::{NodeRange, RequestKind, SimArgs, YesNo};
use super::workloads::{Scenario, Seeded, repeated, scenarios};
use crate::policy_settings::policy_file;

/// Everything that decides the outcome: policies, workloads and the world they run in.
pub(super) struct Experiment {
    pub(super) applications: ApplicationSet,
    pub(super) scenarios: Vec<Scenario>,
    /// One per policy, for the scenario's own seed of failures to be filled in.
    pub(super) settings: Vec<SimulationSettings>,
    pub(super) shown: ShownSettings,
    /// Simulations at once; none for one per core.
    pub(super) threads: Option<u16>,
    failure_seed: Option<u64>,
}

/// Settings as reports show them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ShownSettings {
    /// As given; with the fewest and the most nodes where they come and go.
    pub(super) cluster: String,
    pub(super) gpus: u64,
    /// What a file said; a shape says it all.
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<NodeGroup>>,
    pub(super) physics: String,
    pub(super) interval_s: f64,
    pub(super) restart_delay_s: f64,
    /// Where a preempted job goes on sooner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resume_delay_s: Option<f64>,
    pub(super) interference: f64,
    pub(super) declare_epochs: bool,
    pub(super) failures_per_node_day: f64,
    /// Where nodes come and go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) autoscale: Option<Autoscale>,
    /// Where nodes fail at moments of their own, and not those of the workload's seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure_seed: Option<u64>,
    /// Where jobs are generated or drawn.
    #[serde(flatten)]
    pub(super) random_jobs: Option<RandomJobs>,
}

/// How many jobs were asked for, and what they ask for.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RandomJobs {
    /// None where they are drawn from workloads that are given, as many as those have.
    #[serde(skip_serializing_if = "Option::is_none")]
    generate_jobs: Option<u32>,
    load: f64,
    /// Where they are not those of the workloads that are given.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'static str>,
}

impl RandomJobs {
    fn new(args: &SimArgs, scenarios: &[Scenario]) -> Option<Self> {
        let are = |seeded| scenarios.iter().any(|scenario| scenario.seeded == seeded);
        let requests = match args.requests {
            RequestKind::Tuned => "tuned",
            RequestKind::Realistic => "realistic",
        };
        let generated = are(Seeded::Jobs);
        (generated || are(Seeded::Draws)).then(|| Self {
            generate_jobs: generated.then_some(args.generate_jobs),
            load: args.load(),
            requests: generated.then_some(requests),
        })
    }

    /// As people read it.
    pub(super) fn text(&self) -> String {
        let jobs = self.generate_jobs.map_or_else(String::new, |jobs| format!("{jobs} "));
        let requests = self.requests.filter(|requests| *requests != "tuned");
        let requests = requests.map_or_else(String::new, |requests| format!(" with {requests} requests"));
        format!("{jobs}jobs at load {}{requests}", self.load)
    }
}

impl ShownSettings {
    fn new(args: &SimArgs, cluster: &ClusterSpec, scenarios: &[Scenario]) -> Self {
        let is_file = Path::new(&args.cluster).extension().is_some_and(|extension| extension == "toml");
        let node_gpus = cluster.groups().first().map_or(0, |group| group.gpus);
        let range = |range: NodeRange| format!("{}..{}x{node_gpus}", range.min, range.max);
        Self {
            cluster: args.autoscale.map_or_else(|| args.cluster.clone(), range),
            gpus: cluster.gpus(),
            groups: is_file.then(|| cluster.groups().to_vec()),
            physics: args.traces.as_ref().map_or("parametric profiles".to_owned(), |path| path.display().to_string()),
            interval_s: args.interval,
            restart_delay_s: args.restart_delay,
            resume_delay_s: args.resume_delay,
            interference: args.interference,
            declare_epochs: args.declare_epochs == YesNo::Yes,
            failures_per_node_day: args.failures,
            autoscale: args.autoscale.map(autoscale),
            failure_seed: args.failure_seed.filter(|_| args.failures > 0.0),
            random_jobs: RandomJobs::new(args, scenarios),
        }
    }

    /// The cluster, its groups where a file named them, and its GPUs.
    pub(super) fn cluster_text(&self) -> String {
        let group = |group: &NodeGroup| {
            let gpu_type = group.gpu_type.as_ref().map_or_else(String::new, |gpu_type| format!(" {gpu_type}"));
            format!("{}x{}{gpu_type}, ", group.count, group.gpus)
        };
        let groups: String = self.groups.iter().flatten().map(group).collect();
        format!("{} ({groups}{} GPUs)", self.cluster, self.gpus)
    }
}

impl Experiment {
    /// Reads what the arguments name, and refuses what cannot be simulated.
    pub(super) fn resolve(args: &SimArgs, default_policies: &[&str]) -> Result<Self, SimError> {
        let cluster = cluster(args)?;
        let policies = policies(args, default_policies)?;
        let applications = applications(args)?;
        let scenarios = scenarios(args, &applications, u32::try_from(cluster.gpus()).unwrap_or(u32::MAX))?;
        let shown = ShownSettings::new(args, &cluster, &scenarios);
        let settings = |(label, policy)| SimulationSettings {
            label,
            interval_s: args.interval,
            restart_delay_s: args.restart_delay,
            resume_delay_s: args.resume_delay,
            interference: args.interference,
            declare_epochs: shown.declare_epochs,
            failures: Failures { per_node_day: args.failures, ..Failures::NONE },
            autoscale: shown.autoscale,
            record_series: args.report.is_some(),
            ..SimulationSettings::new(policy, cluster.clone())
        };
        let settings = policies.into_iter().map(settings).collect();
        Ok(Self { applications, scenarios, settings, shown, threads: args.jobs, failure_seed: args.failure_seed })
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
fn cluster(args: &SimArgs) -> Result<ClusterSpec, SimError> {
    let given = ClusterSpec::read(&args.cluster).map_err(SimError::Cluster)?;
    match (args.autoscale, given.groups()) {
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

/// The policies to simulate, each with what to call it.
fn policies(args: &SimArgs, default_policies: &[&str]) -> Result<Vec<(String, PolicySettings)>, SimError> {
    if let Some(name) = repeated(&args.policy) {
        return Err(SimError::Repeated { option: "--policy", value: name.clone() });
    }
    let given = args.policy.iter().map(String::as_str);
    let names: Vec<&str> = if args.policy.is_empty() { default_policies.to_vec() } else { given.collect() };
    let policies: Vec<(String, PolicySettings)> = names.into_iter().map(policy).collect::<Result<_, _>>()?;
    let labels: Vec<String> = policies.iter().map(|(label, _)| label.clone()).collect();
    match repeated(&labels) {
        Some(label) => Err(SimError::Repeated { option: "--policy", value: label.clone() }),
        None => Ok(policies),
    }
}

/// By name, or from a file that is called like the policy it describes is to be called.
fn policy(name: &str) -> Result<(String, PolicySettings), SimError> {
    let path = Path::new(name);
    if path.extension().is_none_or(|extension| extension != "toml") {
        return Ok((name.to_owned(), PolicySettings::named(name).map_err(SimError::Policy)?));
    }
    let refused = |reason: String| SimError::PolicyFile { path: path.to_owned(), reason };
    let settings = policy_file(path).map_err(refused)?;
    let label = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    Ok((label.unwrap_or_else(|| settings.name().to_owned()), settings))
}

fn applications(args: &SimArgs) -> Result<ApplicationSet, SimError> {
    let Some(path) = &args.traces else { return Ok(ApplicationSet::parametric()) };
    if let Err(reason) = fs::read_dir(path) {
        return Err(SimError::Traces { path: path.clone(), reason });
    }
    ApplicationSet::recorded(path).map_err(SimError::Physics)
}
