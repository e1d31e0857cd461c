use std::path::Path;

use pollux_job::{Flexibility, JobSpec, Work};

/// Slots of a cluster, as pretend nodes.
pub(super) const LAYOUT: &str = "2x4";
pub(super) const SLOTS: u32 = 8;
/// GPUs of each job under equal shares: four jobs fit at once, the others wait for their turn.
const EQUAL_SHARE: u32 = 2;

/// How GPUs are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// By goodput; every job tunes its batch.
    Pollux,
    /// The same number for every job, with the batch that its user chose, first come first served.
    Equal,
}

impl Sharing {
    pub(super) const fn folder(self) -> &'static str {
        match self {
            Self::Pollux => "pollux",
            Self::Equal => "equal",
        }
    }

    pub(super) const fn policy(self) -> &'static str {
        match self {
            Self::Pollux => "pollux",
            Self::Equal => "fifo",
        }
    }
}

/// A training of the demo.
pub(super) struct DemoJob {
    pub(super) name: &'static str,
    pub(super) arrival_s: u32,
    /// How its steps scale.
    pub(super) pace: &'static str,
    /// Progress to be made, in passes at the baseline batch.
    pub(super) epochs: u32,
    pub(super) optimiser: &'static str,
}

const fn job(name: &'static str, arrival_s: u32, pace: &'static str, epochs: u32, optimiser: &'static str) -> DemoJob {
    DemoJob { name, arrival_s, pace, epochs, optimiser }
}

/// In order of arrival: some scale well, some do not, a few are short.
pub(super) const JOBS: [DemoJob; 6] = [
    job("vision", 0, "good", 10, "sgd"),
    job("speech", 6, "medium", 8, "adam"),
    job("recommender", 15, "poor", 4, "sgd"),
    job("language", 25, "good", 8, "adam"),
    job("probe", 42, "medium", 3, "sgd"),
    job("finetune", 56, "good", 5, "sgd"),
];

impl DemoJob {
    pub(super) fn request(&self, sharing: Sharing, trainer: &Path, folder: &Path) -> JobSpec {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let epochs = self.epochs.to_string();
        let options = ["--until", "progress", "--epochs", &epochs, "--pace", self.pace, "--optimiser", self.optimiser];
        let mut command = vec![text(trainer)];
        command.extend(options.map(str::to_owned));
        let (replicas, flexibility) = match sharing {
            Sharing::Pollux => (1, Flexibility::Elastic),
            Sharing::Equal => {
                command.push("--fixed-batch".to_owned());
                (EQUAL_SHARE, Flexibility::Rigid)
            }
        };
        JobSpec {
            replicas_max: Some(SLOTS),
            flexibility,
            work: Some(Work::Epochs(self.epochs)),
            command,
            working_dir: folder.to_owned(),
            ..JobSpec::new(self.name, replicas)
        }
    }
}
