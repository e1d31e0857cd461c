//! What travels over the REST interface below `/v1`: requests and responses, nothing but data.
//!
//! ```text
//!  worker ── ReportRequest, ReadyRequest ──> server
//!         <─────────── Assignment ──────────
//! ```
//!
//! No behaviour of any kind. Requests refuse unknown fields; responses may gain some, which older readers ignore.

mod worker;

pub use worker::{AssignedReplica, Assignment, AssignmentState, ReadyRequest, ReportRequest};
