//! Goodput: how fast a training job runs, times what each example is worth.
//!
//! ```text
//!  step timings ──> fit ──> ThroughputModel ─┐
//!                                            ├─> Goodput ──> best batch for a Shape
//!  gradient norms ──> NoiseEstimator ────────┘        └───> learning-rate factor
//! ```
//!
//! The crate knows replicas, batch sizes, seconds and noise; it knows nothing of jobs, nodes by name or
//! schedulers, and it touches no file, clock or random source. [`Goodput`] is the main type.
//!
//! ```
//! use pollux_model::{BatchLimits, Goodput, NoiseStatistics, Parallelism, Shape, StepParams};
//!
//! let throughput = Parallelism::DataParallel.model(StepParams {
//!     alpha_compute: 0.02,
//!     beta_compute: 0.0007,
//!     alpha_internode: 0.1,
//!     beta_internode: 1e-4,
//!     alpha_intranode: 0.01,
//!     beta_intranode: 1e-3,
//!     gamma: 1.3,
//! })?;
//! let limits = BatchLimits::new(128, 4096, 32, 1024)?;
//! let goodput = Goodput { throughput, noise: NoiseStatistics::new(1.0, 40.0)?, limits };
//!
//! let four = goodput.best(Shape::new(1, 4)?)?;
//! let eight = goodput.best(Shape::new(2, 8)?)?;
//! assert!(four.batch_size() <= 4096 && eight.goodput > four.goodput);
//! # Ok::<(), pollux_model::ModelError>(())
//! ```

mod shape;
mod gpu_type;
mod throughput;
mod fit;
mod noise;
mod efficiency;
mod limits;
mod batch;
mod goodput;
mod learning_rate;
mod loss;
mod error;

pub use batch::{Batch, BatchMode};
pub use efficiency::NoiseStatistics;
pub use error::ModelError;
pub use fit::{Fit, Observation, fit, objective};
pub use goodput::{BatchChoice, Goodput};
pub use gpu_type::{GpuType, GpuTypeName};
pub use learning_rate::{LearningRateRule, ScalingContext};
pub use limits::{BatchLimits, LoneReplica};
pub use loss::LossCurve;
pub use noise::{GradientNorms, NoiseEstimator, NoiseSample, Preconditioner};
pub use shape::Shape;
pub use throughput::{Parallelism, StepParams, ThroughputModel};
