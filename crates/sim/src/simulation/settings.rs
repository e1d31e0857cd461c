use std::collections::BTreeMap;

use pollux_engine::EngineSettings;
use pollux_job::PodsPer;
use pollux_model::GpuTypeName;
use pollux_policy::{AutoscalerSettings, PolicySettings};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Application, ClusterSpec, NodeGroup, ReplicaNeeds};

/// As published: what a change of its allocation costs a job.
const RESTART_DELAY_S: f64 = 30.0;

/// What is simulated, beside the workload and the physics.
#[derive(Clone, Debug)]
pub struct SimulationSettings {
    /// Who decides.
    pub policy: PolicySettings,
    /// What reports call it: two settings of one policy are told apart by it.
    pub label: String,
    /// Where jobs run.
    pub cluster: ClusterSpec,
    /// Seconds between rounds.
    pub interval_s: f64,
    /// Seconds a job stands still when its allocation changes.
    pub restart_delay_s: f64,
    /// Seconds a preempted job stands still when it goes on exactly where it was, as it does where suspended jobs stay in
    /// the memory of their machines; otherwise that is a restart like any other.
    pub resume_delay_s: Option<f64>,
    /// Seconds a job stands still when it is resized in place, as on a live cluster: whoever stays trains on until the
    /// additions are up, which takes a restart. Otherwise a resize is a restart like any other, as published.
    pub resize_delay_s: Option<f64>,
    /// What comes and goes as one where a resize is in place.
    pub pods_per: PodsPer,
    /// Share of its speed that a multi-node job loses on a node that hosts another one.
    pub interference: f64,
    /// Whether users say how many epochs their jobs train.
    pub declare_epochs: bool,
    /// What jobs tune for and report.
    pub tune_for: TuneFor,
    /// How nodes fail.
    pub failures: Failures,
    /// How nodes come and go; without it the cluster stays as it is. With it, the cluster says what nodes are like and
    /// the run starts with the fewest.
    pub autoscale: Option<Autoscale>,
    /// Whether to keep what every job had at every moment, for plots.
    pub record_series: bool,
}

/// Nodes of one type of GPU.
pub(super) struct Pool {
    pub(super) gpu_type: GpuTypeName,
    /// In all.
    pub(super) gpus: u64,
    /// Replicas that fit on the first of its nodes.
    pub(super) on_a_node: u32,
}

/// What jobs make as large as they can, by the choice of their batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuneFor {
    /// Throughput times statistical efficiency.
    #[default]
    Goodput,
    /// Samples per second alone, as autoscalers do that know nothing of statistical efficiency (Or et al., MLSys 2020):
    /// agents are told that every sample counts in full, so that they and whoever reads their reports take throughput
    /// for goodput, and samples for progress. What training really does stays as it is.
    Throughput,
}

/// A cluster that buys nodes and gives them back, all of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Autoscale {
    /// How many nodes are wanted.
    pub settings: AutoscalerSettings,
    /// Seconds from one look at it to the next.
    pub interval_s: f64,
    /// Seconds until a node that was ordered is up. It is paid for from then on.
    pub provision_s: f64,
}

impl Default for Autoscale {
    fn default() -> Self {
        Self { settings: AutoscalerSettings::default(), interval_s: 300.0, provision_s: 120.0 }
    }
}

/// How nodes fail: each at random moments, to come back after a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failures {
    /// Failures per node and day; 0 for none.
    pub per_node_day: f64,
    /// Seconds until a failed node is back.
    pub repair_s: f64,
    /// Seed of the moments.
    pub seed: u64,
}

impl Failures {
    /// Nothing fails.
    pub const NONE: Self = Self { per_node_day: 0.0, repair_s: 600.0, seed: 0 };
}

/// A setting that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{name} {value}; expected {accepted}")]
pub struct SettingError {
    /// Which.
    pub name: &'static str,
    /// What it said.
    pub value: f64,
    /// What would be accepted.
    pub accepted: &'static str,
}

impl SimulationSettings {
    /// The published setting: 60 s rounds, 30 s per change, no interference, no failures.
    pub fn new(policy: PolicySettings, cluster: ClusterSpec) -> Self {
        Self {
            label: policy.name().to_owned(),
            policy,
            cluster,
            interval_s: 60.0,
            restart_delay_s: RESTART_DELAY_S,
            resume_delay_s: None,
            resize_delay_s: None,
            pods_per: PodsPer::Replica,
            interference: 0.0,
            declare_epochs: true,
            tune_for: TuneFor::Goodput,
            failures: Failures::NONE,
            autoscale: None,
            record_series: false,
        }
    }

    /// Seconds that an application stands still when its allocation changes. Where it has a time of its own, that is what it
    /// takes at the usual delay, and another delay is in proportion.
    pub(super) fn restart_s(&self, application: &Application) -> f64 {
        match application.restart_s() {
            Some(own_s) => own_s * self.restart_delay_s / RESTART_DELAY_S,
            None => self.restart_delay_s,
        }
    }

    /// How the engine is run for so many jobs.
    pub fn engine(&self, jobs: usize) -> EngineSettings {
        let usual = EngineSettings::default();
        EngineSettings {
            round_interval_s: self.interval_s,
            round_gap_min_s: self.interval_s.min(usual.round_gap_min_s),
            restart_cost_default_s: self.restart_delay_s,
            // Nothing hangs here, so a long restart is only that.
            settle_timeout_s: usual.settle_timeout_s.max(20.0 * self.restart_delay_s),
            ended_jobs_max: jobs,
            live_jobs_max: jobs,
            ..usual
        }
    }

    /// The nodes that are there from the start.
    pub(super) fn first_nodes(&self) -> Vec<&NodeGroup> {
        match &self.autoscale {
            Some(autoscale) => vec![self.node(); autoscale.settings.nodes_min as usize],
            None => self.cluster.nodes().collect(),
        }
    }

    /// What the first node is like, and all that are bought.
    pub(super) fn node(&self) -> &NodeGroup {
        self.cluster.groups().first().expect("a cluster has a group")
    }

    /// GPUs of the first node.
    pub(super) fn node_gpus(&self) -> u32 {
        self.node().gpus
    }

    /// The most replicas of a job that there can be at once, on GPUs of one type, and those on the first node that has
    /// room for any.
    pub(super) fn room(&self, needs: &ReplicaNeeds) -> (u32, u32) {
        let mut pools: BTreeMap<Option<&str>, u64> = BTreeMap::new();
        let mut on_a_node = None;
        for group in self.cluster.groups().iter().filter(|group| needs.allow(group)) {
            let count = self.autoscale.as_ref().map_or(group.count, |autoscale| autoscale.settings.nodes_max);
            let fits = group.resources().fits(needs.resources());
            on_a_node = on_a_node.or(Some(fits).filter(|&fits| fits > 0));
            *pools.entry(group.gpu_type.as_deref()).or_default() += u64::from(count) * u64::from(fits);
        }
        let most = pools.into_values().max().unwrap_or(0);
        (u32::try_from(most).unwrap_or(u32::MAX), on_a_node.unwrap_or(1))
    }

    /// The nodes of each type of GPU on which a replica fits, in the order of the cluster.
    pub(super) fn pools(&self, needs: &ReplicaNeeds) -> Vec<Pool> {
        let mut pools: Vec<Pool> = Vec::new();
        for group in self.cluster.groups().iter().filter(|group| needs.allow(group)) {
            let on_a_node = group.resources().fits(needs.resources());
            let (gpu_type, gpus) = (group.type_name(), u64::from(group.count) * u64::from(group.gpus));
            match pools.iter_mut().find(|pool| pool.gpu_type == gpu_type) {
                Some(pool) => {
                    pool.gpus += gpus;
                    pool.on_a_node = if pool.on_a_node > 0 { pool.on_a_node } else { on_a_node };
                }
                None => pools.push(Pool { gpu_type, gpus, on_a_node }),
            }
        }
        pools.retain(|pool| pool.on_a_node > 0);
        pools
    }

    /// Whether there are GPUs of several types.
    pub(super) fn is_mixed(&self) -> bool {
        self.cluster.groups().windows(2).any(|pair| pair[0].type_name() != pair[1].type_name())
    }

    /// The most GPUs that there can be.
    pub(super) fn gpus_max(&self) -> u32 {
        let gpus = match &self.autoscale {
            Some(autoscale) => u64::from(autoscale.settings.nodes_max) * u64::from(self.node_gpus()),
            None => self.cluster.gpus(),
        };
        u32::try_from(gpus).unwrap_or(u32::MAX)
    }

    pub(super) fn check(&self) -> Result<(), SettingError> {
        let within = |name, value: f64, range: std::ops::RangeInclusive<f64>, accepted| {
            if range.contains(&value) { Ok(()) } else { Err(SettingError { name, value, accepted }) }
        };
        within("interval", self.interval_s, 1.0..=86_400.0, "1 to 86400 seconds")?;
        within("restart delay", self.restart_delay_s, 0.0..=86_400.0, "0 to 86400 seconds")?;
        within("resume delay", self.resume_delay_s.unwrap_or(0.0), 0.0..=86_400.0, "0 to 86400 seconds")?;
        within("resize delay", self.resize_delay_s.unwrap_or(0.0), 0.0..=86_400.0, "0 to 86400 seconds")?;
        within("interference", self.interference, 0.0..=0.99, "a share from 0 to 0.99")?;
        within("failures per node and day", self.failures.per_node_day, 0.0..=1000.0, "0 to 1000")?;
        within("repair time", self.failures.repair_s, 1.0..=1e7, "1 to 1e7 seconds")?;
        if let Some(autoscale) = &self.autoscale {
            within("autoscaling interval", autoscale.interval_s, 1.0..=86_400.0, "1 to 86400 seconds")?;
            within("provisioning time", autoscale.provision_s, 0.0..=86_400.0, "0 to 86400 seconds")?;
            within("groups of nodes to autoscale", self.cluster.groups().len() as f64, 1.0..=1.0, "1")?;
        }
        if self.cluster.has_lifetimes() {
            // A node that fails or is bought comes again by other rules.
            let failures = self.failures.per_node_day;
            within("failures per node and day", failures, 0.0..=0.0, "0 where nodes have a lifetime")?;
            let most = self.autoscale.map_or(0.0, |autoscale| f64::from(autoscale.settings.nodes_max));
            within("nodes to autoscale", most, 0.0..=0.0, "none where nodes have a lifetime")?;
        }
        Ok(())
    }
}
