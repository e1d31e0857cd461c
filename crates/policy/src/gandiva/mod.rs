//! Time slices, packing, migration and growth, each undone where measurements do not bear it out.

mod policy;
mod settings;
mod trials;
mod turns;

pub(crate) use policy::{Gandiva, GandivaMemory};
pub use settings::GandivaSettings;
