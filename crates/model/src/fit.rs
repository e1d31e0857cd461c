//! From measured step times to a throughput model.

mod objective;
mod solver;

use std::ops::RangeInclusive;

use crate::{ModelError, Parallelism, Shape, StepParams, ThroughputModel};
use objective::{Objective, Structure};

/// Measured times of one configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Observation {
    /// Where it ran.
    pub shape: Shape,
    /// Samples of one micro-batch on one replica.
    pub local_batch: u32,
    /// Seconds of a micro-batch without synchronisation.
    pub compute_s: f64,
    /// Seconds of a micro-batch that ends a step, synchronisation included.
    pub step_s: f64,
}

impl Observation {
    /// Times outside of this range are a broken clock or a wrong unit, not a training step.
    pub const STEP_TIME_RANGE_S: RangeInclusive<f64> = 1e-7..=1e7;
    /// The same configuration measured this many times apart is two things under one name.
    pub const CONTRADICTION: f64 = 100.0;

    /// Refuses times that no training step can have.
    pub fn check(&self) -> Result<(), ModelError> {
        let replicas = self.shape.replicas();
        let local_batch = self.local_batch;
        if local_batch == 0 {
            return Err(ModelError::EmptyBatch { replicas });
        }
        for (name, value) in [("compute time", self.compute_s), ("step time", self.step_s)] {
            if !Self::STEP_TIME_RANGE_S.contains(&value) {
                let accepted = "1e-7 to 1e7 seconds";
                return Err(ModelError::StepTime { name, value, local_batch, replicas, accepted });
            }
        }
        if self.step_s < self.compute_s {
            let accepted = "step times of at least the compute time";
            return Err(ModelError::StepTime {
                name: "step time",
                value: self.step_s,
                local_batch,
                replicas,
                accepted,
            });
        }
        Ok(())
    }
}

/// A fitted model and how well it tells the measured times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The model.
    pub model: ThroughputModel,
    /// RMS log errors plus regularisers, the quantity the fit made small.
    pub objective: f64,
}

/// Fits a throughput model to observations; a model fitted to earlier ones is a good place to start from.
///
/// Where there is no evidence the model is optimistic, so that a scheduler explores: unseen links between nodes cost a
/// tenth more than those within, and replicas beyond two are free until measured.
pub fn fit(
    parallelism: Parallelism,
    observations: &[Observation],
    warm_start: Option<&ThroughputModel>,
) -> Result<Fit, ModelError> {
    let sorted = checked(observations)?;
    let structure = Structure::of(&sorted);
    let objective = Objective::new(&sorted);
    let solution = solver::solve(&objective, &structure, warm_start.map(|model| model.params().to_array()));
    let params = StepParams::from_array(solution.params);
    if !solution.objective.is_finite() {
        return Err(ModelError::NotFinite { observations: observations.len() });
    }
    Ok(Fit { model: parallelism.model(params)?, objective: solution.objective })
}

/// The quantity a fit minimises (section 4.1 of the paper), at given parameters.
pub fn objective(observations: &[Observation], params: &StepParams) -> Result<f64, ModelError> {
    Ok(Objective::new(&checked(observations)?).value(&params.to_array()))
}

/// Checked and sorted, so that the order of arrival cannot change a fit.
fn checked(observations: &[Observation]) -> Result<Vec<Observation>, ModelError> {
    if observations.is_empty() {
        return Err(ModelError::NoObservations);
    }
    for observation in observations {
        observation.check()?;
    }
    let mut sorted = observations.to_vec();
    sorted.sort_by(|a, b| {
        (a.shape, a.local_batch)
            .cmp(&(b.shape, b.local_batch))
            .then(a.step_s.total_cmp(&b.step_s))
            .then(a.compute_s.total_cmp(&b.compute_s))
    });
    for same in sorted.chunk_by(|a, b| (a.shape, a.local_batch) == (b.shape, b.local_batch)) {
        let (first, last) = (same[0], same[same.len() - 1]);
        if last.step_s > first.step_s * Observation::CONTRADICTION {
            return Err(ModelError::Contradiction {
                low_s: first.step_s,
                high_s: last.step_s,
                local_batch: first.local_batch,
                nodes: first.shape.nodes(),
                replicas: first.shape.replicas(),
            });
        }
    }
    Ok(sorted)
}
