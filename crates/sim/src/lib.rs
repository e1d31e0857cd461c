//! Simulation without a cluster: what training jobs really do, and the workloads they arrive in.
//!
//! ```text
//!  traces folder ──> Recorded ───┐
//!                                ├─> Application ──> step times, noise, progress targets ──> run
//!  profiles/*.toml ─> Parametric ┘
//!
//!  osdi21 CSV ──┐
//!  Philly log ──┼─> Workload: who arrives when, with what request
//!  Generator ───┘
//!
//!  simulate(settings, applications, workload) ──> RunOutcome ──> Summary, report_page
//!  simulate_sweep(settings, applications, sweep) ──> SweepOutcome
//!  forecast(live cluster, changes) ──> Forecast: when its jobs would be complete
//! ```
//!
//! The physics here is hidden from policies: they learn of it only what an agent would observe. The crate has no
//! network, no threads and no clock; a simulation is a function of its inputs. [`Application`] is the main type.
//!
//! ```
//! use pollux_model::Batch;
//! use pollux_sim::{ApplicationName, ApplicationSet, Outcome, Running, TrainingState};
//!
//! let applications = ApplicationSet::parametric();
//! let cifar10 = applications.get(ApplicationName::Cifar10);
//! let batch = Batch::fixed(cifar10.limits(), 512, 4).expect("512 samples fit on 4 GPUs");
//! let running = Running { placement: &[4], batch, slowdown: 0.0 };
//!
//! let mut state = TrainingState::default();
//! assert!(matches!(cifar10.run(&mut state, &running, 1.0), Outcome::Ran));
//! assert!(state.progress > 0.0);
//! ```

mod cluster;
mod physics;
mod progress;
mod report;
mod rng;
mod sharing;
mod simulation;
mod table;
mod workload;

pub use cluster::{ClusterError, ClusterSpec, Lifetime, NodeGroup};
pub use physics::profile;
pub use physics::{
    Application, ApplicationName, ApplicationSet, OnType, Parametric, PhysicsError, Profile, Recorded, Reported,
    StepTime, UnknownApplication,
};
pub use progress::{Outcome, Running, TrainingState};
pub use report::{PageHeader, report_page};
pub use rng::SimRng;
pub use sharing::shared_speeds;
pub use simulation::{
    Autoscale, Change, ClusterSample, Cut, Failures, Forecast, ForecastError, JobForecast, JobOutcome, JobSample,
    LiveCluster, Newcomer, PlannedRound, PlannedShare, RunOutcome, RungOutcome, Script, ScriptOutcome, ScriptedEvent,
    ScriptedJob, ScriptedLife, SettingError, SimulationError, SimulationSettings, Summary, Sweep, SweepOutcome,
    Trainee, Training, TrialOutcome, TuneFor, Unforeseen, forecast, play, simulate, simulate_sweep,
};
pub use table::TableError;
pub use workload::{
    GeneratorSettings, PhillySettings, ReplicaNeeds, Request, Requests, Workload, WorkloadError, WorkloadJob, generate,
    is_philly, read_osdi21, read_philly, repeat, resample, tuned_requests,
};
