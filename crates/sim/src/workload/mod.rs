//! Who arrives when: workloads from files, from a cluster's log, or made up.

mod arrivals;
mod jobs;
mod osdi21;
mod philly;
mod requests;
mod resample;
mod tuned;

pub use arrivals::{GeneratorSettings, generate};
pub use jobs::{ReplicaNeeds, Workload, WorkloadError, WorkloadJob};
pub use osdi21::read_osdi21;
pub use philly::{PhillySettings, is_philly, read_philly};
pub use requests::{Request, Requests};
pub use resample::{repeat, resample};
pub use tuned::tuned_requests;
