//! Shares of time on types of GPU by a linear program, and rounds that realise them.

mod linear_program;
mod objective;
mod policy;
mod settings;

pub(crate) use policy::{Gavel, GavelMemory};
pub use settings::{GavelObjective, GavelSettings, OwnerSettings, Turn};
