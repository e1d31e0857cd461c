use pollux_model::{GpuType, Observation, Parallelism, Shape, ThroughputModel, fit};

use crate::{AgentError, TypeReport};

/// Recent steps that a configuration remembers; their median ignores up to half of them.
const RECENT_STEPS: usize = 15;
/// Configurations remembered for one kind of GPU; beyond, the one unseen for longest is forgotten.
const CELLS_MAX: usize = 512;
/// A median that moved by more than this since the last fit is news.
const DRIFT: f64 = 0.05;

/// Step times measured on one kind of GPU, and the model fitted to them.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Profile {
    gpu_type: GpuType,
    parallelism: Parallelism,
    /// Ordered by shape and local batch.
    cells: Vec<Cell>,
    /// Steps recorded, which serves as the clock of "unseen for longest".
    recorded: u64,
    stale: bool,
    replicas_profiled: u32,
    model: Option<ThroughputModel>,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
struct Cell {
    shape: Shape,
    local_batch: u32,
    last_recorded: u64,
    /// Oldest first.
    compute_s: Vec<f64>,
    sync_s: Vec<f64>,
    /// Median compute and step time that the model was fitted to.
    fitted: Option<(f64, f64)>,
}

impl Profile {
    pub(crate) const fn new(gpu_type: GpuType, parallelism: Parallelism) -> Self {
        Self { gpu_type, parallelism, cells: Vec::new(), recorded: 0, stale: false, replicas_profiled: 0, model: None }
    }

    /// The kind of GPU it was measured on.
    pub const fn gpu_type(&self) -> GpuType {
        self.gpu_type
    }

    /// The last good fit.
    pub const fn model(&self) -> Option<&ThroughputModel> {
        self.model.as_ref()
    }

    /// One typical observation per configuration, ordered by shape and local batch.
    pub fn observations(&self) -> Vec<Observation> {
        self.cells.iter().map(Cell::observation).collect()
    }

    /// Refuses a saved profile that no agent would have written.
    pub(crate) fn check(&self) -> Result<(), AgentError> {
        for cell in &self.cells {
            if cell.compute_s.is_empty() || cell.compute_s.len() != cell.sync_s.len() {
                return Err(AgentError::EmptyCell { local_batch: cell.local_batch, replicas: cell.shape.replicas() });
            }
            cell.observation().check()?;
        }
        if let Some(model) = &self.model {
            model.params().check()?;
        }
        Ok(())
    }

    /// Takes a checked observation in.
    pub(crate) fn record(&mut self, observation: &Observation) {
        self.recorded += 1;
        self.replicas_profiled = self.replicas_profiled.max(observation.shape.replicas());
        let key = (observation.shape, observation.local_batch);
        let idx = match self.cells.binary_search_by_key(&key, Cell::key) {
            Ok(idx) => idx,
            Err(idx) => {
                self.cells.insert(idx, Cell::new(key));
                idx
            }
        };
        let cell = &mut self.cells[idx];
        cell.record(observation, self.recorded);
        self.stale |= cell.is_news();
        if self.cells.len() > CELLS_MAX {
            self.forget_oldest();
        }
    }

    /// Fits again if there is news. A fit that fails leaves the last good model in place.
    pub(crate) fn refit(&mut self) {
        if !self.stale {
            return;
        }
        self.stale = false;
        for cell in &mut self.cells {
            let typical = cell.observation();
            cell.fitted = Some((typical.compute_s, typical.step_s));
        }
        if let Ok(found) = fit(self.parallelism, &self.observations(), self.model.as_ref()) {
            self.model = Some(found.model);
        }
    }

    pub(crate) fn report(&self) -> Option<TypeReport> {
        let model = self.model?;
        Some(TypeReport { gpu_type: self.gpu_type, model, replicas_profiled: self.replicas_profiled })
    }

    fn forget_oldest(&mut self) {
        let oldest = (0..self.cells.len()).min_by_key(|&idx| self.cells[idx].last_recorded);
        if let Some(idx) = oldest {
            self.cells.remove(idx);
        }
    }
}

impl Cell {
    const fn new((shape, local_batch): (Shape, u32)) -> Self {
        Self { shape, local_batch, last_recorded: 0, compute_s: Vec::new(), sync_s: Vec::new(), fitted: None }
    }

    fn key(&self) -> (Shape, u32) {
        (self.shape, self.local_batch)
    }

    fn record(&mut self, observation: &Observation, recorded: u64) {
        self.last_recorded = recorded;
        for (times, value) in [
            (&mut self.compute_s, observation.compute_s),
            (&mut self.sync_s, observation.step_s - observation.compute_s),
        ] {
            if times.len() == RECENT_STEPS {
                times.remove(0);
            }
            times.push(value);
        }
    }

    fn observation(&self) -> Observation {
        let compute_s = median(&self.compute_s);
        Observation {
            shape: self.shape,
            local_batch: self.local_batch,
            compute_s,
            step_s: compute_s + median(&self.sync_s),
        }
    }

    fn is_news(&self) -> bool {
        let typical = self.observation();
        self.fitted.is_none_or(|(compute_s, step_s)| {
            (typical.compute_s / compute_s - 1.0).abs() > DRIFT || (typical.step_s / step_s - 1.0).abs() > DRIFT
        })
    }
}

/// The middle value; of an even number, the lower one, because what disturbs a step makes it slower.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2]
}
