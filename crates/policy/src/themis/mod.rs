//! Leases by auction.

mod policy;
mod placement;

pub use policy::ThemisSettings;
pub(crate) use policy::{Themis, ThemisMemory};
