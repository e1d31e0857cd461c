//! Outcomes as one page that people would rather look at than read.

mod data;
mod decimate;
mod page;

pub use page::{PageHeader, report_page};
