//! A real Kubernetes cluster on this machine: etcd, API server, controllers, scheduler, kubelets and containers, with GPUs
//! that are made up and a record of who got them. For tests and demonstrations; nothing here is part of the product.
//!
//! ```text
//!  this process ── https ──> port-forward ──> control plane: etcd, API server, controllers, scheduler, KWOK
//!       |                                        | bridge
//!       | pipe                       +-----------+-----------+
//!       v                          node-1      node-2      node-3     each: containerd, kubelet, fake GPUs
//!    janitor: removes everything when the pipe closes
//! ```
//!
//! Every box below the process is a machine of its own: namespaces for processes, mounts and network, which end with their
//! first process. [`Cluster::with_nodes`] needs root. [`Cluster::without_nodes`] runs the control plane alone, as any
//! user, on an address of the loopback network of its own; [`Cluster::add_fake_nodes`] fills it with nodes that only KWOK
//! plays.

mod error;
mod requirements;
mod process;
mod instance;
mod machine;
mod certificates;
mod control_plane;
mod image;
mod registry;
mod node;
mod gpu_record;
mod write;
mod cluster;
mod fake_nodes;
mod installation;

pub use cluster::{Cluster, is_ready, wait_for};
pub use error::TestbedError;
pub use gpu_record::{GpuEvent, GpuEventKind, GpuRecord, Holder};
pub use image::Image;
pub use installation::NAMESPACE;
pub use node::{Node, NodeSettings};
pub use registry::{REGISTRY, serve};
pub use requirements::{Tier, prepare};
pub use write::Write;
