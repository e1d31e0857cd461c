use std::collections::BTreeMap;

/// What the shares of time are to be best for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum GavelObjective {
    /// The least throughput of a job against that on an equal share of all types.
    #[default]
    MaxMin,
    /// The same, and what jobs cannot have more of is shared out again among the others.
    WaterFilling,
    /// The same over the owners of jobs first, each with its weight.
    Hierarchical,
    /// The largest ratio of a job's completion time to that alone on its share.
    FinishTime,
    /// The time until the last job ends.
    Makespan,
    /// The sum of all throughputs.
    Throughput,
    /// The sum of all throughputs for what the GPUs cost, where every job is done in time.
    Cost,
}

/// How the jobs of an owner share what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Turn {
    /// All alike, by their priorities.
    #[default]
    Fairness,
    /// The oldest has all that it can use, then the next.
    Fifo,
}

/// An owner of jobs in [`GavelSettings`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct OwnerSettings {
    /// What all its jobs count together.
    pub weight: f64,
    /// How they share it.
    pub turn: Turn,
}

impl Default for OwnerSettings {
    fn default() -> Self {
        Self { weight: 1.0, turn: Turn::default() }
    }
}

/// Settings of [`PolicySettings::Gavel`](crate::PolicySettings::Gavel).
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct GavelSettings {
    /// What is to be best.
    pub objective: GavelObjective,
    /// Seconds for which a job keeps its GPUs.
    pub round_s: f64,
    /// What a GPU of each type costs, for [`GavelObjective::Cost`]; 1 where nothing is said.
    pub gpu_costs: BTreeMap<String, f64>,
    /// How many times what it takes alone on its fastest type a job may take, for [`GavelObjective::Cost`].
    pub slowdown_max: Option<f64>,
    /// Owners of jobs, for [`GavelObjective::Hierarchical`]; others have a weight of 1.
    pub owners: BTreeMap<String, OwnerSettings>,
}

impl Default for GavelSettings {
    fn default() -> Self {
        Self {
            objective: GavelObjective::default(),
            round_s: 360.0,
            gpu_costs: BTreeMap::new(),
            slowdown_max: None,
            owners: BTreeMap::new(),
        }
    }
}
