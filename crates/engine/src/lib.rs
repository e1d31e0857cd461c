//! The cluster's state machine: events in, commands out, nothing done by itself.
//!
//! ```text
//!   submissions, reports,              ┌───────── every round ─────────┐
//!   releases, failures,                │ ClusterView ─> Policy ─> Plan │
//!   nodes, ticks                       └──────▲───────────────┬────────┘
//!        Event ──────────> Engine::step ──────┘               ▼
//!                          jobs, nodes, revisions ──> Command: launch, resize, stop
//! ```
//!
//! [`Engine`] keeps the state of jobs and nodes, asks a policy who gets what, and says what has to be done to get
//! there. It starts no process, reads no clock and keeps no file: whoever drives it (a simulator, a server, a test)
//! carries the commands out and tells what became of them. Whatever arrives in whatever order, it never gives a GPU to
//! two jobs, but to a second one as a guest where a plan says so, and never panics; what makes no sense is answered by [`Command::Refused`].
//!
//! ```
//! use pollux_engine::{Command, Engine, EngineSettings, Event};
//! use pollux_job::{JobId, JobSpec};
//! use pollux_policy::{NodeId, PolicySettings, Timestamp};
//!
//! let mut engine = Engine::new(EngineSettings::default(), &PolicySettings::Fifo)?;
//! let mut out = Vec::new();
//! let (node, gpu_type) = (NodeId(0), Default::default());
//! let joined = Event::NodeJoined { node, gpus: 4, gpu_type, cpus: None, memory: None };
//! engine.step(Timestamp(0), joined, &mut out);
//! engine.step(Timestamp(0), Event::JobSubmitted { job: JobId(1), spec: JobSpec::new("resnet", 2) }, &mut out);
//! let wakeup = engine.next_wakeup().expect("a job waits");
//! engine.step(wakeup, Event::Tick, &mut out);
//! assert!(matches!(&out[..], [Command::Launch { job: JobId(1), .. }]));
//! # Ok::<(), pollux_engine::SettingsError>(())
//! ```
//!
//! What a driver promises:
//! - It calls [`Engine::step`] with [`Event::Tick`] once [`Engine::next_wakeup`] has come, after the other events of
//!   that moment. Time does not go back; a moment that does counts as the latest one seen.
//! - It carries commands out in order, and tells each replica's release once, after it was told to stop the replica
//!   and its process is gone. A replica that ends by itself is a success or a failure first; the engine then tells
//!   the rest of the group to stop, the dead replica included.
//! - A node that joins has no process of ours on it.

mod job_state;
mod settings;
mod event;
mod command;
mod refusal;
mod usage;
mod start_history;
mod job;
mod node;
mod gpu_types;
mod type_knowledge;
mod rounds;
mod engine;
mod lifecycle;
mod dependencies;
mod time_limit;
mod membership;
mod node_end;
mod groups;
mod leftovers;
mod planning;
mod saved;
mod state;
mod explanation;
mod outlook;
mod fair_share;
mod invariants;

pub use command::{Command, StopReason};
pub use engine::Engine;
pub use event::{Event, FailureKind};
pub use explanation::{Explanation, Wait};
pub use fair_share::{FairShare, Fairness};
pub use job::{HeldGpus, Job, Leaving, ReceivedReport, SizeChange, declared_samples};
pub use job_state::{FailureCause, FailureReason, JobState, ResizeCause, Revision};
pub use node::Node;
pub use outlook::{Pace, SizeOutlook, TypeOutlook, work_done};
pub use planning::PlanChange;
pub use refusal::{Refusal, ReportFault};
pub use rounds::RoundTimes;
pub use saved::{MeasuredType, SavedApplication, SavedJob, SavedNode};
pub use settings::{EngineSettings, SettingsError};
pub use start_history::StartHistory;
pub use state::EngineState;
pub use usage::JobUsage;
