//! Measured steps: from the bytes of CSV files to one running mean per configuration.

mod error;
mod records;
mod row;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use pollux_model::{Observation, Shape};

pub use error::{HeaderProblem, MeasurementError, RowProblem};
pub use records::RecordError;
use records::Records;
use row::{Columns, Step};
pub use row::{LOCAL_BATCH_MAX, REPLICAS_MAX};

/// More different configurations than any profile has; the file is probably something else.
const CELLS_MAX: usize = 100_000;
/// Rows between two reports of progress.
const PROGRESS_ROWS: u64 = 1 << 16;

/// Measured steps of one job, pooled: memory grows with the configurations, not with the rows.
#[derive(Debug, Default)]
pub struct Measurements {
    configurations: BTreeMap<(Shape, u32), Configuration>,
    cells: usize,
    rows: u64,
    replicas_per_node_max: u32,
}

/// All steps with the same nodes, replicas and local batch.
#[derive(Debug)]
struct Configuration {
    step_s_low: f64,
    step_s_high: f64,
    /// By placement; empty where only the shape was given.
    cells: BTreeMap<Box<str>, Cell>,
}

/// Running means of the steps of one configuration in one placement.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    rows: u64,
    step_s: f64,
    sync_s: f64,
}

impl Measurements {
    /// Adds the rows of a CSV file; `on_progress` hears the rows read so far now and then.
    pub fn read_file(&mut self, path: &Path, on_progress: &mut dyn FnMut(u64)) -> Result<(), MeasurementError> {
        let name = path.display().to_string();
        let unreadable = |reason| MeasurementError::Unreadable { file: name.clone(), reason };
        let file = File::open(path).map_err(unreadable)?;
        if file.metadata().map_err(unreadable)?.is_dir() {
            return Err(MeasurementError::Directory { file: name });
        }
        self.read(&name, BufReader::with_capacity(1 << 16, file), on_progress)
    }

    /// Adds the rows of a file, which messages call `file`; `on_progress` hears the rows read so far now and then.
    pub fn read(
        &mut self,
        file: &str,
        reader: impl BufRead,
        on_progress: &mut dyn FnMut(u64),
    ) -> Result<(), MeasurementError> {
        let file = || file.to_owned();
        let mut records = Records::new(reader);
        let unreadable = |reason| MeasurementError::Unreadable { file: file(), reason };
        let header = |line, problem| MeasurementError::Header { file: file(), line, problem };
        let row = |line, problem| MeasurementError::Row { file: file(), line, problem };
        let found = records.advance().map_err(|error| match error {
            RecordError::Unreadable(reason) => unreadable(reason),
            other => header(records.line_number(), HeaderProblem::Record(other)),
        })?;
        if !found {
            return Err(MeasurementError::Empty { file: file() });
        }
        let columns = Columns::of(&records).map_err(|problem| header(records.line_number(), problem))?;
        let rows_before = self.rows;
        while records.advance().map_err(|error| match error {
            RecordError::Unreadable(reason) => unreadable(reason),
            other => row(records.line_number(), RowProblem::Record(other)),
        })? {
            let added = columns.step(&records).and_then(|step| self.add(&step));
            added.map_err(|problem| row(records.line_number(), problem))?;
            if self.rows.is_multiple_of(PROGRESS_ROWS) {
                on_progress(self.rows);
            }
        }
        if self.rows == rows_before {
            return Err(MeasurementError::NoRows { file: file() });
        }
        Ok(())
    }

    fn add(&mut self, step: &Step<'_>) -> Result<(), RowProblem> {
        let configuration = self.configurations.entry((step.shape, step.local_batch)).or_insert(Configuration {
            step_s_low: step.step_s,
            step_s_high: step.step_s,
            cells: BTreeMap::new(),
        });
        configuration.widen(step.step_s)?;
        if let Some(cell) = configuration.cells.get_mut(step.placement) {
            cell.add(step);
        } else {
            if self.cells == CELLS_MAX {
                return Err(RowProblem::TooManyCells { max: CELLS_MAX });
            }
            self.cells += 1;
            let cell = configuration.cells.entry(step.placement.into()).or_default();
            cell.add(step);
        }
        self.rows += 1;
        self.replicas_per_node_max = self.replicas_per_node_max.max(step.replicas_per_node_max);
        Ok(())
    }

    /// One observation per nodes, replicas and local batch, in which each placement counts once.
    pub fn configurations(&self) -> Vec<Observation> {
        let means = self.configurations.iter().map(|(&(shape, local_batch), configuration)| {
            let count = configuration.cells.len() as f64;
            let mean = |time: fn(&Cell) -> f64| configuration.cells.values().map(time).sum::<f64>() / count;
            observation(shape, local_batch, mean(|cell| cell.step_s), mean(|cell| cell.sync_s))
        });
        means.collect()
    }

    /// One observation per placement and local batch.
    pub fn cells(&self) -> impl Iterator<Item = Observation> {
        self.configurations.iter().flat_map(|(&(shape, local_batch), configuration)| {
            configuration.cells.values().map(move |cell| observation(shape, local_batch, cell.step_s, cell.sync_s))
        })
    }

    /// Rows read.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The most replicas a step ran on; 0 before the first row, like the other bounds.
    pub fn replicas_max(&self) -> u32 {
        self.shapes().map(Shape::replicas).max().unwrap_or(0)
    }

    /// The most replicas on one node.
    pub fn replicas_per_node_max(&self) -> u32 {
        self.replicas_per_node_max
    }

    /// The smallest local batch.
    pub fn local_batch_min(&self) -> u32 {
        self.configurations.keys().map(|&(_, local_batch)| local_batch).min().unwrap_or(0)
    }

    /// The largest local batch.
    pub fn local_batch_max(&self) -> u32 {
        self.configurations.keys().map(|&(_, local_batch)| local_batch).max().unwrap_or(0)
    }

    /// The most replicas of a step that ran on one node; 0 where none did.
    pub fn one_node_replicas_max(&self) -> u32 {
        self.shapes().filter(|shape| shape.nodes() == 1).map(Shape::replicas).max().unwrap_or(0)
    }

    /// The most replicas of a step that ran on several nodes; 0 where none did.
    pub fn multi_node_replicas_max(&self) -> u32 {
        self.shapes().filter(|shape| shape.nodes() > 1).map(Shape::replicas).max().unwrap_or(0)
    }

    fn shapes(&self) -> impl Iterator<Item = Shape> {
        self.configurations.keys().map(|&(shape, _)| shape)
    }
}

impl Configuration {
    /// The model never sees single steps here, so what it would refuse of them is refused now.
    fn widen(&mut self, step_s: f64) -> Result<(), RowProblem> {
        for other_s in [self.step_s_low, self.step_s_high] {
            if step_s > other_s * Observation::CONTRADICTION || other_s > step_s * Observation::CONTRADICTION {
                return Err(RowProblem::Contradiction { step_s, other_s });
            }
        }
        self.step_s_low = self.step_s_low.min(step_s);
        self.step_s_high = self.step_s_high.max(step_s);
        Ok(())
    }
}

impl Cell {
    fn add(&mut self, step: &Step<'_>) {
        self.rows += 1;
        self.step_s += (step.step_s - self.step_s) / self.rows as f64;
        self.sync_s += (step.sync_s - self.sync_s) / self.rows as f64;
    }
}

fn observation(shape: Shape, local_batch: u32, step_s: f64, sync_s: f64) -> Observation {
    Observation { shape, local_batch, compute_s: step_s - sync_s, step_s }
}

#[cfg(test)]
mod tests;
