//! Simulations, experiments and fits, with their tables, plots and pages.
//!
//! ```text
//!  measured steps ──> fit ────────> FitReport         (JSON, plot)
//!  policies, jobs ──> simulate ───> SimReport         (JSON, page)
//!  experiment.toml ─> experiment ─> ExperimentReport  (CSV, Markdown, plot, JSON)
//! ```
//!
//! What the commands `pollux fit`, `pollux sim` and `pollux experiment` and the Python module `pollux.lab` share. It
//! reads and writes the files it is told of and uses all cores. It parses no arguments, prints nothing and never ends
//! the process: how far a long run is goes to a callback, what the reader should know is in the report's notes.

mod fit;
mod measurements;
mod sim;
mod experiment;
mod plot;
mod policy_settings;
mod progress;

pub use experiment::{
    Column, ColumnKind, ExperimentError, ExperimentOptions, ExperimentReport, Fact, Figure, Grid, Value, experiment,
};
pub use fit::{
    Best, Bound, FitError, FitOptions, FitReport, FitSettings, LocalBatchRange, NOISE_SCALE_MAX, Note, Placed,
    PredictionError, Recommendation, Row, SCALING_EFFICIENCY_MIN, fit, percent,
};
pub use measurements::{
    HeaderProblem, LOCAL_BATCH_MAX, MeasurementError, Measurements, REPLICAS_MAX, RecordError, RowProblem,
};
pub use plot::DrawError;
pub use policy_settings::{labelled_policy, policy_named};
pub use progress::Progress;
pub use sim::{
    JobReport, NodeRange, RandomJobs, RunReport, Seeded, ShownSettings, SimError, SimOptions, SimReport, outcomes,
    simulate,
};
