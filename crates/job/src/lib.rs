//! What a job is, said once.
//!
//! ```text
//!  flags ─┐
//!  file  ─┼─> JobSpec ──> REST body ──> engine, policies, simulator
//!  REST  ─┘      └──────> store (as a versioned record)
//! ```
//!
//! [`JobSpec`] is what a user asks for. Command-line flags, keys of a job file and fields of the REST interface have the
//! names of its fields. [`Phase`] is where a job is in its life, in one word. This crate is data: it decides nothing,
//! and knows neither files nor sockets.
//!
//! ```
//! use pollux_job::{Flexibility, JobSpec};
//!
//! let spec = JobSpec { flexibility: Flexibility::Rigid, ..JobSpec::new("resnet", 4) };
//! assert_eq!((spec.fewest(), spec.most()), (4, 4));
//! assert!(JobSpec { replicas_min: 8, ..spec }.check().is_err());
//! ```

mod id;
mod phase;
#[cfg(feature = "serde")]
mod variables;
mod work;
mod flexibility;
mod pods_per;
mod dependency;
mod amount;
mod secret;
mod error;
mod spec;
mod launch;
#[cfg(feature = "serde")]
mod fields;
#[cfg(feature = "serde")]
mod reading;

#[cfg(feature = "serde")]
pub use amount::written;
pub use amount::{AmountError, bytes, seconds, size};
pub use dependency::{After, Dependency};
pub use error::SpecError;
pub use flexibility::Flexibility;
pub use id::JobId;
pub use launch::{check_variable, is_own_variable};
pub use phase::Phase;
pub use pods_per::PodsPer;
pub use secret::Secret;
pub use spec::{JobSpec, REPLICAS_MAX_DEFAULT};
pub use work::Work;
