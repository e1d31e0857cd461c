//! The brain of one training job: it learns from the steps it is shown and says how to run the next ones.
//!
//! ```text
//!  StepObservation ──> Profile ──> refit ──┐
//!                                          ├──> Tuning (batch, accumulation), learning-rate factor
//!  GradientNorms ──> NoiseEstimator ───────┘──> AgentReport for the scheduler
//! ```
//!
//! The simulator, the Rust trainer and the Python SDK all run this [`Agent`]. It knows one job only: no other jobs,
//! no nodes by name, no clock, no connection. All it has learned is its [`AgentState`], which can be saved and given
//! to another process on another number of GPUs.

mod observation;
mod profile;
mod losses;
mod evidence;
mod agent;
mod report;
mod error;

pub use agent::{Agent, AgentSettings, AgentState};
pub use error::AgentError;
pub use evidence::Evidence;
pub use observation::{Placement, StepObservation};
pub use report::{AgentReport, Progress, Tuning, TypeReport};
