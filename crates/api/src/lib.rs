//! What travels over the REST interface below `/v1`: requests and responses, nothing but data.
//!
//! ```text
//!  user ─ JobSpec, WhatIfRequest, .. ──> server
//!       <─ Job, Event, Node, WhatIf, .. ─────
//!  worker ── ReportRequest, ReadyRequest ────> server
//!         <─────────── Assignment ────────────
//! ```
//!
//! No behaviour but how JSON is read. Requests refuse unknown fields; responses may gain some, which older readers ignore.

/// The header in which a token is sent where somebody on the way, such as the API server of a Kubernetes cluster, keeps
/// `Authorization` for itself.
pub const FORWARDED_AUTHORIZATION: &str = "x-pollux-authorization";

mod allocation;
mod checkpoint;
mod cluster;
mod event;
mod explanation;
mod failure;
mod job;
mod log;
mod parsing;
mod phases;
mod plan;
mod series;
mod token;
mod what_if;
mod worker;

pub use allocation::{
    AllocationEvent, AllocationOutput, AllocationQueue, AllocationQueueList, AllocationQueueSpec, AllocationRehearsal,
    SlurmAllocation,
};
pub use checkpoint::{JobCheckpoints, PruneReport, PruneRequest};
pub use cluster::{
    ClusterStatus, HeldBackNode, IssuedNodeToken, MachineRemoval, Node, NodeAgent, NodeJob, NodeList, NodeTokenRequest,
};
pub use event::{Event, EventList};
pub use explanation::{Explanation, Payer, SizeOutlook, TypeOutlook};
pub use failure::{Failure, FailureDetail};
pub use job::{Job, JobDetail, JobList};
pub use log::LogPiece;
pub use parsing::{in_plain_words, read_json};
pub use plan::{PlanChange, PlanKept, PlanStatus};
pub use series::{ClusterSeries, JobSeries};
pub use token::{IssuedToken, Role, Token, TokenList, TokenRequest};
pub use what_if::{
    BeforeAfter, Change, Completion, HypotheticalJob, JobForecast, TrainsLike, WhatIf, WhatIfChoices, WhatIfRequest,
};
pub use worker::{
    AssignedReplica, Assignment, AssignmentState, Endpoint, ReadyRequest, Rendezvous, RendezvousRequest, ReportRequest,
};
