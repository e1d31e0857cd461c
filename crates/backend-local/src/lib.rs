//! Replicas as processes of this machine.
//!
//! ```text
//!  LocalBackend ──> monitor (thread) ──spawns──> shim (one per replica, own session) ──> worker (own process group)
//!                     │    ^                     │                                        └─> whatever it starts
//!                     v    └── pidfd, inotify ── replicas/17/
//!                  Observer                       order.json  what to run; written before the shim is started
//!                                                 shim.pid    who runs it, or that nobody may any more
//!                                                 worker.pid  the worker runs
//!                                                 stop.json   it is to end
//!                                                 log-0, ...  what it wrote, each file from that position on
//!                                                 exit.json   how it ended; nothing of it runs any more
//! ```
//!
//! The daemon may die at any instruction. The shim and its worker stay, logs are written on, and the next daemon reads
//! from the folders what runs, on which GPUs, and what has ended. A process is known by its number *and* the moment of
//! its start, and signalled through a handle on it, so that nobody who got the number later is harmed. The one file
//! that both sides may write first is `shim.pid`: either a shim claims its order and runs it, or a new daemon voids it,
//! and the folder with it, so that the order may be given anew.
//!
//! Nothing of a replica survives it. The shim adopts orphans of its worker and kills them; if the shim itself is killed,
//! the worker dies with it and the daemon ends what else carries the replica's mark in its environment.
//!
//! Linux only. Whoever runs the daemon as a service must not let the service manager kill what it leaves behind
//! (systemd: `KillMode=process`). The crate decides nothing about who runs where. Two daemons on one state folder are
//! prevented by whoever owns it; should there be two nevertheless, the file `epoch` says which of them may act.
//! [`LocalBackend`] is the main type.

#![warn(clippy::let_underscore_must_use)]

mod error;
mod settings;
mod gpus;
mod machine;
mod nodes;
mod process;
mod epoch_gate;
mod disk;
mod folder;
mod log_reader;
mod checkpoints;
mod inherited;
mod limits;
mod live;
mod monitor;
mod backend;
mod shim;
#[cfg(test)]
mod test_folder;

pub use backend::{LocalBackend, Occupancy};
pub use error::LocalError;
pub use gpus::gpu_names;
pub use limits::raise_files_max;
pub use nodes::NodeSummary;
pub use settings::{LocalSettings, LogLimits, MachineIdentity, NodeLayout};
pub use shim::{Foreground, ShimError, Stopper, shim};
