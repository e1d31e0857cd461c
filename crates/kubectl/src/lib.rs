//! What `pollux` needs where it is called `kubectl pollux`: jobs as resources, and a tunnel to the operator.
//!
//! ```text
//!  Client of the REST interface ──http──> Tunnel ──https, as the user──> API server ──https──> operator
//!   a port of this machine, a token        adds a token of a service account,                  TokenReview: whose
//!   that lives as long as the tunnel       which the API server gives the user                 namespace is it?
//! ```
//!
//! Who may do what is decided by the API server, with the rights that the user's kubeconfig has: who may have a token of a
//! service account in a namespace sees the jobs there, and jobs are created, changed and deleted as resources. Nothing is
//! kept. [`Cluster`] and [`Tunnel`] are the main types.

mod error;
mod access;
mod cluster;
mod job_resource;
mod session_token;
mod tunnel;

pub use access::{Access, OperatorName};
pub use cluster::Cluster;
pub use error::KubectlError;
pub use job_resource::{PodSettings, job_resource};
pub use pollux_operator::PodsPer;
pub use tunnel::Tunnel;
