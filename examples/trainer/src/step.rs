//! What ranks say to each other at every step.

use pollux_agent::Tuning;
use pollux_worker::Orders;
use serde::{Deserialize, Serialize};

use crate::samples::Tally;
use crate::state::BrainState;

/// A rank's part of a step, sent with the sum of its gradients.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Contribution {
    /// The newest generation it has heard of; 0 for none.
    pub(crate) heard: u64,
    pub(crate) instruction: Instruction,
    /// The samples it really worked on.
    pub(crate) samples: u64,
    pub(crate) checksum: u64,
    /// Summed over them; 0 where that is no number.
    pub(crate) loss: f64,
    /// Summed over its micro-batches: the squared norm of their mean gradients; 0 where that is no number.
    pub(crate) micro_sqr: f64,
}

/// What a rank was told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Instruction {
    Train,
    /// The whole group is to stop.
    Stop,
    /// This rank is to stop, and nobody said what becomes of the others.
    Leave,
}

impl From<Orders> for Instruction {
    fn from(orders: Orders) -> Self {
        match orders {
            Orders::Train => Self::Train,
            Orders::Stop => Self::Stop,
            Orders::Leave => Self::Leave,
        }
    }
}

/// What rank 0 makes of it all, sent with the mean gradient.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StepDecision {
    /// `None` if the gradient is not finite: then the parameters stay as they are.
    pub(crate) learning_rate: Option<f64>,
    /// For the steps from here on.
    pub(crate) tuning: Tuning,
    pub(crate) next: Next,
    /// What the next rank 0 needs to know, where that may be another process.
    pub(crate) brain: Option<Box<BrainState>>,
}

/// What happens after a step; everybody does the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Next {
    Train,
    /// Those who are not in the newest assignment leave; the others go on without them.
    ShrunkGroup,
    /// The newcomers of the newest assignment have met and join.
    Grow,
    /// Everybody leaves. Those who were not told to may be wanted again, unless the whole group was meant.
    Stop {
        wanted: bool,
    },
    /// The training is done.
    Finish,
}

/// What all ranks contributed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Total {
    /// The newest generation that everybody has heard of; `None` while some know of another than others.
    pub(crate) heard: Option<u64>,
    pub(crate) instruction: Instruction,
    pub(crate) tally: Tally,
    pub(crate) loss: f64,
    pub(crate) micro_sqr: f64,
}

impl Total {
    pub(crate) fn of(contributions: &[Contribution]) -> Self {
        let newest = contributions.iter().map(|part| part.heard).max();
        let instructed = |instruction| contributions.iter().any(|part| part.instruction == instruction);
        let mut tally = Tally::default();
        contributions.iter().for_each(|part| tally.add(Tally { samples: part.samples, checksum: part.checksum }));
        Self {
            heard: newest.filter(|&newest| contributions.iter().all(|part| part.heard == newest)),
            instruction: [Instruction::Stop, Instruction::Leave]
                .into_iter()
                .find(|&instruction| instructed(instruction))
                .unwrap_or(Instruction::Train),
            tally,
            loss: contributions.iter().map(|part| part.loss).sum(),
            micro_sqr: contributions.iter().map(|part| part.micro_sqr).sum(),
        }
    }
}
