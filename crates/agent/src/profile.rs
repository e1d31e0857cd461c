use pollux_model::{GpuTypeName, ModelError, Observation, Parallelism, Shape, ThroughputModel, fit};

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
pub(crate) struct Profile {
    gpu_type: GpuTypeName,
    /// Ordered by shape and local batch.
    cells: Vec<Cell>,
    /// Steps recorded, which serves as the clock of "unseen for longest".
    recorded: u64,
    /// There is news since the last good fit.
    stale: bool,
    replicas_profiled: u32,
    /// The largest micro-batch that fitted its memory when it was last measured; earlier states do not say.
    #[cfg_attr(feature = "serde", serde(default))]
    local_batch_max: Option<u32>,
    /// The last good fit.
    model: Option<ThroughputModel>,
    /// Why the last fit failed, until there is news. Another process tries anew.
    #[cfg_attr(feature = "serde", serde(skip))]
    fit_error: Option<ModelError>,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    pub(crate) const fn new(gpu_type: GpuTypeName) -> Self {
        Self {
            gpu_type,
            cells: Vec::new(),
            recorded: 0,
            stale: false,
            replicas_profiled: 0,
            local_batch_max: None,
            model: None,
            fit_error: None,
        }
    }

    pub(crate) const fn gpu_type(&self) -> &GpuTypeName {
        &self.gpu_type
    }

    pub(crate) const fn model(&self) -> Option<&ThroughputModel> {
        self.model.as_ref()
    }

    pub(crate) const fn fit_error(&self) -> Option<&ModelError> {
        self.fit_error.as_ref()
    }

    /// Refuses a saved profile that no agent would have written.
    pub(crate) fn check(&self) -> Result<(), AgentError> {
        let cells = self.cells.len();
        if cells > CELLS_MAX {
            return Err(AgentError::CellCount { cells, limit: CELLS_MAX });
        }
        for pair in self.cells.windows(2) {
            if pair[0].key() >= pair[1].key() {
                let (shape, local_batch) = pair[1].key();
                return Err(AgentError::CellOrder { nodes: shape.nodes(), replicas: shape.replicas(), local_batch });
            }
        }
        self.cells.iter().try_for_each(Cell::check)
    }

    /// Takes a checked observation in, of GPUs whose memory a micro-batch of so many samples fits.
    pub(crate) fn record(&mut self, observation: &Observation, local_batch_max: u32) {
        self.local_batch_max = Some(local_batch_max);
        self.recorded = self.recorded.saturating_add(1);
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
        if cell.is_news() {
            self.stale = true;
            self.fit_error = None;
        }
        if self.cells.len() > CELLS_MAX {
            self.forget_oldest();
        }
    }

    /// Fits again if there is news or the model is of another kind. A fit that fails leaves the last good model in
    /// place and is not tried again before there is news.
    pub(crate) fn refit(&mut self, parallelism: Parallelism) {
        let other_kind = self.model.is_some_and(|model| model.parallelism() != parallelism);
        if self.fit_error.is_some() || !(self.stale || other_kind) {
            return;
        }
        let observations: Vec<_> = self.cells.iter().map(Cell::observation).collect();
        match fit(parallelism, &observations, self.model.as_ref()) {
            Ok(found) => {
                self.model = Some(found.model);
                self.stale = false;
                for (cell, typical) in self.cells.iter_mut().zip(observations) {
                    cell.fitted = Some((typical.compute_s, typical.step_s));
                }
            }
            Err(error) => self.fit_error = Some(error),
        }
    }

    pub(crate) fn report(&self) -> Option<TypeReport> {
        let model = self.model?;
        let Self { replicas_profiled, local_batch_max, .. } = *self;
        Some(TypeReport { gpu_type: self.gpu_type.clone(), model, replicas_profiled, local_batch_max })
    }

    /// Adds a configuration that no fit accepts.
    #[cfg(test)]
    pub(crate) fn add_impossible_cell(&mut self) {
        let mut cell = Cell::new((Shape::single(), u32::MAX));
        cell.compute_s.push(f64::INFINITY);
        cell.sync_s.push(0.0);
        self.cells.push(cell);
        self.stale = true;
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

    fn check(&self) -> Result<(), AgentError> {
        let (local_batch, replicas) = (self.local_batch, self.shape.replicas());
        let (compute, sync) = (self.compute_s.len(), self.sync_s.len());
        if compute != sync || !(1..=RECENT_STEPS).contains(&compute) {
            return Err(AgentError::CellTimes { compute, sync, local_batch, replicas, limit: RECENT_STEPS });
        }
        for (&compute_s, sync_s) in self.compute_s.iter().zip(&self.sync_s) {
            Observation { shape: self.shape, local_batch, compute_s, step_s: compute_s + sync_s }.check()?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Parallelism = Parallelism::DataParallel;

    fn seen(local_batch: u32, compute_s: f64) -> Observation {
        Observation { shape: Shape::single(), local_batch, compute_s, step_s: compute_s }
    }

    #[test]
    fn a_fit_that_fails_keeps_the_last_model_and_is_tried_again_when_there_is_news() {
        let mut profile = Profile::new(GpuTypeName::default());
        profile.record(&seen(8, 0.1), 64);
        profile.refit(KIND);
        let good = profile.clone();
        assert!(good.model.is_some() && good.fit_error.is_none() && !good.stale);

        profile.add_impossible_cell();
        profile.refit(KIND);
        assert!(matches!(profile.fit_error(), Some(ModelError::StepTime { .. })), "{profile:?}");
        assert_eq!((profile.report(), &profile.cells[0]), (good.report(), &good.cells[0]));

        // The step that cannot be is outvoted.
        (0..2).for_each(|_| profile.record(&seen(u32::MAX, 3.0), 64));
        profile.refit(KIND);
        assert_eq!((profile.fit_error(), profile.stale), (None, false));
        assert_ne!(profile.model, good.model);
    }
}
