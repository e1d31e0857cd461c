//! `pollux._native`: the agent, the worker's line to the scheduler, simulations, fits and experiments, as Python sees
//! them.
//!
//! ```text
//!  pollux (Python) ──> _native ──> Agent, Worker, simulate, fit, experiment
//!                         └─ every error ──> pollux.PolluxError
//! ```
//!
//! Conversions and one map of errors; what it converts is decided elsewhere. Python's lock is released around whatever
//! may take long: fits, simulations, farewells. The signatures are in `pollux/_native.pyi`.

mod agent;
mod scaling;
mod goodput;
mod worker;
mod sim;
mod lab;
mod json;
mod error;

/// What the package `pollux` is built on.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::agent::Agent;
    #[pymodule_export]
    use crate::error::PolluxError;
    #[pymodule_export]
    use crate::goodput::{Goodput, fit_steps};
    #[pymodule_export]
    use crate::lab::{experiment, fit};
    #[pymodule_export]
    use crate::scaling::ScalingContext;
    #[pymodule_export]
    use crate::sim::{Applications, simulate};
    #[pymodule_export]
    use crate::worker::{Termination, Worker};
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
