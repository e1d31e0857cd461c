use pollux_agent::AgentReport;
use pollux_engine::{EngineSettings, EngineState};
use pollux_job::JobSpec;
use pollux_model::GpuTypeName;
use pollux_policy::{JobId, NodeId, PolicySettings, Timestamp};

use crate::ApplicationName;

/// A live cluster at a moment.
#[derive(Clone, Debug)]
pub struct LiveCluster {
    /// The moment.
    pub now: Timestamp,
    /// What its engine knows, and what its policy remembers.
    pub state: EngineState,
    /// How it is run.
    pub settings: EngineSettings,
    /// Who decides.
    pub policy: PolicySettings,
}

/// Something that could be done to it.
#[derive(Clone, Debug)]
pub enum Change {
    /// A job is submitted.
    Submit(Box<Newcomer>),
    /// Nodes join that are alike.
    AddNodes {
        /// How many.
        count: u32,
        /// GPUs of each.
        gpus: u32,
        /// Their kind.
        gpu_type: GpuTypeName,
    },
    /// A node is emptied, and used no more.
    Drain(NodeId),
    /// Another policy decides; the last one, if there are several.
    Policy(PolicySettings),
    /// A job is ended.
    Cancel(JobId),
    /// A job is set aside.
    Pause(JobId),
    /// A paused job goes on.
    Resume(JobId),
}

/// A job that does not exist.
#[derive(Clone, Debug)]
pub struct Newcomer {
    /// What its user would ask for.
    pub spec: JobSpec,
    /// What it would do.
    pub training: Training,
}

/// What a job that does not exist would do.
#[derive(Clone, Debug)]
pub enum Training {
    /// What another one has told of itself, from the beginning.
    Like {
        /// Its last words.
        report: AgentReport,
        /// Seconds that a change of its group costs, if that was measured.
        restart_cost_s: Option<f64>,
    },
    /// One of the applications that ship with the project, which an agent gets to know as it runs.
    Application(ApplicationName),
}
