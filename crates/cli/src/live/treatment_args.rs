use clap::Args;
use pollux_job::{Flexibility, JobSpec};

use crate::usage::whole;

/// How the scheduler may treat a job.
#[derive(Args, Debug)]
pub(crate) struct TreatmentArgs {
    /// How it may be moved and resized [default: elastic]
    #[arg(long, value_name = "HOW", value_parser = flexibility)]
    flexibility: Option<Flexibility>,

    /// Short for --flexibility rigid: it gets exactly what it asks for, and keeps it
    #[arg(long, conflicts_with_all = ["non_preemptible", "flexibility"])]
    rigid: bool,

    /// Short for --flexibility non_preemptible: its size may be chosen, but once started it keeps its GPUs
    #[arg(long, conflicts_with = "flexibility")]
    non_preemptible: bool,

    /// Higher goes first, if the policy uses priorities; below 0 it uses only idle GPUs
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    #[arg(value_parser = whole(i32::MIN..=i32::MAX, "expected whole numbers from -2147483648 to 2147483647"))]
    priority: Option<i32>,

    /// What it trains, by any name: jobs of one name are taken to train alike
    #[arg(long, value_name = "NAME")]
    application: Option<String>,

    /// How often it is retried after a failure [default: 3]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole(0..=u32::MAX, "expected whole numbers from 0 to 4294967295"))]
    retries: Option<u32>,
}

impl TreatmentArgs {
    /// What is said goes before what the specification has.
    pub(crate) fn apply(&self, spec: &mut JobSpec) {
        let flexibility = match (self.rigid, self.non_preemptible) {
            (true, _) => Some(Flexibility::Rigid),
            (false, true) => Some(Flexibility::NonPreemptible),
            (false, false) => self.flexibility,
        };
        spec.flexibility = flexibility.unwrap_or(spec.flexibility);
        spec.application = self.application.clone().or_else(|| spec.application.take());
        spec.priority = self.priority.unwrap_or(spec.priority);
        spec.retries = self.retries.unwrap_or(spec.retries);
    }
}

fn flexibility(text: &str) -> Result<Flexibility, &'static str> {
    match text {
        "elastic" => Ok(Flexibility::Elastic),
        "non_preemptible" | "non-preemptible" => Ok(Flexibility::NonPreemptible),
        "rigid" => Ok(Flexibility::Rigid),
        _ => Err("expected elastic, non_preemptible or rigid"),
    }
}
