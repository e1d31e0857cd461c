//! Leases by auction.

mod policy;
mod placement;

pub(crate) use policy::Themis;
pub use policy::ThemisSettings;
