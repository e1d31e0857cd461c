//! Who gets which GPUs: a read-only view of the cluster in, a plan out.
//!
//! ```text
//!  ClusterView ──> Policy::plan ──> Plan ──> Plan::check ──> (the engine carries it out)
//!  nodes, jobs,                     allocation and
//!  what agents reported             reason per job
//! ```
//!
//! A policy decides and nothing else: it starts no process, fetches no time, and keeps no records that the view could
//! give it. Choose one through [`PolicySettings`], the only place that knows them all.

mod ids;
mod allocation;
mod resources;
mod type_blind;
mod view;
mod plan;
mod state;
mod policy;
mod priority;
mod settings;
mod free_gpus;
mod gang;
mod gittins;
mod fifo;
mod srtf;
mod rates;
mod draft;
mod gandiva;
mod antman;
mod tiresias;
mod auction;
mod themis;
mod marginal;
mod fixed_batch;
mod optimus;
mod slaq;
mod by_size;
mod optimiser;
mod waiting;
mod work_left;
mod cheapest_donors;
mod speedups;
mod elastic;
mod pollux;
mod sia;
mod castor;
mod gavel;
mod autoscaler;

pub use allocation::Allocation;
pub use antman::AntManSettings;
pub use autoscaler::{Advice, Autoscaler, AutoscalerSettingError, AutoscalerSettings, NodePool};
pub use castor::CastorSettings;
pub use gandiva::GandivaSettings;
pub use gavel::{GavelObjective, GavelSettings, OwnerSettings, Turn};
pub use ids::{NodeId, Timestamp};
pub use optimus::OptimusSettings;
pub use plan::{Assignment, Binding, PlacementRules, Plan, PlanError, Quality, Reason};
pub use policy::{Policy, Sharing};
pub use pollux::PolluxSettings;
pub use pollux_job::{Flexibility, JobId};
pub use priority::Priorities;
pub use resources::{NodeResources, ReplicaResources};
pub use settings::{PolicySettingError, PolicySettings, UnknownPolicy};
pub use sia::SiaSettings;
pub use slaq::SlaqSettings;
pub use state::PolicyState;
pub use themis::ThemisSettings;
pub use tiresias::{Consolidate, TiresiasPriority, TiresiasSettings};
pub use view::{ClusterView, EndedJob, JobView, NodeEnd, NodeView, Oracle, SucceededJob, TypeProfile};
