//! The main process of a pod, and what it and whoever orders pods agree on.
//!
//! ```text
//!  pod-info/annotations (stop) ──> supervise ──> the program and all that it starts
//!                                     │
//!                                     ├──> stdout, with marks that say how much was written
//!                                     └──> termination message: how it ended
//! ```
//!
//! A pod may hold several replicas, a [`Bundle`]: then there is a child for each, which does for one what the main process does
//! where there is only one, and the log says whose every line is.
//!
//! It runs where nothing but the container's own files can be relied on: no network, no scheduler, no API server. Watching over
//! the program is what `pollux-backend-local` does; [`supervise`] is the main function.

mod places;
mod bundle;
mod report;
mod marks;
mod bundle_log;
mod stops;
mod gpus;
mod oom;
mod supervise;
mod supervise_bundle;

pub use bundle::{Bundle, EndedAlike, Place};
pub use bundle_log::{BundleLine, bundle_line};
pub use marks::{MARK_EVERY, mark, position_of};
pub use places::{STOP_ANNOTATION, Supervision};
pub use report::{Ending, Report};
pub use stops::stops_text;
pub use supervise::{SupervisorError, install, is_started, supervise};
pub use supervise_bundle::{is_whole, run_replica};
