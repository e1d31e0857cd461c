use clap::Args;
use pollux_policy::PolicySettings;

use crate::usage::{number, whole};

/// How plans are made and carried out, wherever replicas run.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Scheduling policy: pollux, castor, sia, gavel, optimus, tiresias, themis, gandiva, antman, slaq, srtf, fifo, or a .toml file with
    /// settings of one
    #[arg(long, value_name = "NAME", default_value = PolicySettings::default().name())]
    pub(crate) policy: String,

    /// Seconds between plans; arrivals and departures bring them forward
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    #[arg(allow_negative_numbers = true, value_parser = number::<f64>("expected seconds from 0.1"))]
    pub(crate) round_interval: f64,

    /// Seconds a replica has to save and exit before it is killed
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_negative_numbers = true)]
    #[arg(value_parser = whole(0..=86_400_u64, "expected whole seconds from 0 to 86400"))]
    pub(crate) grace: u64,
}
