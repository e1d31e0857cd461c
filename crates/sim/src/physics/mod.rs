//! What a job really does, hidden from policies: step times, gradient noise, progress per epoch.

mod application;
mod delaunay;
mod error;
mod insertion_order;
mod interpolation;
mod parametric;
pub mod profile;
mod recorded;
mod reported;
mod step_times;

pub use application::{Application, ApplicationName, ApplicationSet, StepTime, UnknownApplication};
pub use error::PhysicsError;
pub use parametric::Parametric;
pub use profile::{OnType, Profile};
pub use recorded::Recorded;
pub use reported::Reported;
