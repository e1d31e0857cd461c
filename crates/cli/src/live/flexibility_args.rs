use clap::Args;
use pollux_job::Flexibility;

/// How a job may be moved and resized.
#[derive(Args, Debug)]
pub(crate) struct FlexibilityArgs {
    /// How it may be moved and resized [default: elastic]
    #[arg(long, value_name = "HOW", value_parser = flexibility)]
    flexibility: Option<Flexibility>,

    /// Short for --flexibility rigid: it gets exactly what it asks for, and keeps it
    #[arg(long, conflicts_with_all = ["non_preemptible", "flexibility"])]
    rigid: bool,

    /// Short for --flexibility non_preemptible: its size may be chosen, but once started it keeps its GPUs
    #[arg(long, conflicts_with = "flexibility")]
    non_preemptible: bool,
}

impl FlexibilityArgs {
    /// What is said, if anything is.
    pub(crate) const fn given(&self) -> Option<Flexibility> {
        match (self.rigid, self.non_preemptible) {
            (true, _) => Some(Flexibility::Rigid),
            (false, true) => Some(Flexibility::NonPreemptible),
            (false, false) => self.flexibility,
        }
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
