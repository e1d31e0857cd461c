//! Who arrives when: workloads from files, from a cluster's log, or made up.

mod arrivals;
mod jobs;
mod osdi21;
mod philly;
mod realistic;
mod tuned;

pub use arrivals::{GeneratorSettings, Requests, generate};
pub use jobs::{JobSpec, Workload, WorkloadError};
pub use osdi21::read_osdi21;
pub use philly::{PhillySettings, read_philly};
pub use tuned::{TunedRequest, tuned_requests};
