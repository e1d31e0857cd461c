//! The main process of a pod, and what it and whoever orders pods agree on.
//!
//! ```text
//!  pod-info/annotations (stop) ──> supervise ──> the program and all that it starts
//!                                     │
//!                                     ├──> stdout, with marks that say how much was written
//!                                     └──> termination message: how it ended
//! ```
//!
//! It runs where nothing but the container's own files can be relied on: no network, no scheduler, no API server. Watching over
//! the program is what `pollux-backend-local` does; [`supervise`] is the main function.

mod places;
mod report;
mod marks;
mod supervise;

pub use marks::{MARK_EVERY, mark, position_of};
pub use places::{STOP_ANNOTATION, Supervision};
pub use report::{Ending, Report};
pub use supervise::{SupervisorError, install, is_started, supervise};
