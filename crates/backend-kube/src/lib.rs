//! Replicas as pods of a Kubernetes cluster.
//!
//! ```text
//!  KubeBackend ──orders──> Actor (task) ──create, patch, delete──> API server ──> kubelet ──> supervisor (PID 1)
//!                            │    ^                                    │                        │  └─> the program
//!                            v    └────────── pods, nodes ─────────────┘     pod-info/annotations (stop), termination
//!                         Observer                                           message (how it ended), log with positions
//! ```
//!
//! The cluster's own scheduler binds every pod: it is made with a gate and a required node, and let go when everything that
//! it needs is there. A stop is an annotation, which the supervisor reads from a file, because the grace of a deletion
//! cannot be shortened. A pod that has ended stays, with its log and how it ended, until it is forgotten. Names follow from
//! orders, so that nothing is started twice; a config map holds the highest epoch.
//!
//! What others run is counted and left alone. The crate decides nothing about who runs where. [`KubeBackend`] is the main
//! type; `bundle.rs` says what is done when. A pod holds one replica, or all that a job has on a node.

mod error;
mod settings;
mod names;
mod quantity;
mod requests;
mod pod;
mod stage;
mod node;
mod epoch_gate;
mod bundle;
mod steps;
mod survey;
mod actor;
mod log_text;
mod logs;
mod checkpoints;
mod backend;

pub use backend::KubeBackend;
pub use epoch_gate::{EpochGate, Refused};
pub use error::KubeError;
pub use names::{
    AUTHORITY_ANNOTATION, EPOCH_ANNOTATION, FINALIZER, GATE, INSTANCE_LABEL, JOB_LABEL, MANAGER, NUMBER_END,
    REPLICA_LABEL, job_of_pod,
};
pub use requests::asked_by;
pub use settings::{JobPods, KubeSettings, PodTemplates, TrustedAuthorities};
pub use survey::{HeldPod, Survey};
