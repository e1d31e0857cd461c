use std::fmt;

use pollux_model::{Goodput, ModelError, Shape, StepParams, ThroughputModel};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::FitError;
use super::settings::Settings;
use crate::measurements::Measurements;

/// Below this, more than half of what further GPUs could do is lost.
pub(super) const SCALING_EFFICIENCY_MIN: f64 = 0.5;

/// What `pollux fit` found out.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// What it was made with.
    pub(crate) settings: Settings,
    /// Fitted parameters.
    pub(crate) parameters: StepParams,
    /// What the fit made small.
    pub(crate) objective: f64,
    /// How far predictions are from measurements.
    pub(crate) error: PredictionError,
    /// One for each number of GPUs.
    pub(crate) rows: Vec<Row>,
    /// How many GPUs to take.
    pub(crate) recommendation: Recommendation,
    /// What the reader should know before trusting it.
    #[serde(skip)]
    pub(crate) notes: Vec<Note>,
}

/// Absolute relative errors of predicted step times, over all measured cells.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct PredictionError {
    /// Mean.
    pub(crate) mean: f64,
    /// Median.
    pub(crate) median: f64,
    /// Largest.
    pub(crate) max: f64,
    /// Different placements and local batches.
    pub(crate) cells: usize,
    /// Measured steps.
    pub(crate) rows: u64,
}

/// A number of GPUs and the best it can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// GPUs, one replica each.
    pub(crate) gpus: u32,
    /// Nodes they fill.
    pub(crate) nodes: u32,
    /// Nothing where no batch fits the limits.
    pub(crate) best: Option<Best>,
}

/// The batch with the highest goodput, and what it is worth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Best {
    /// Total batch.
    pub(crate) batch_size: u32,
    /// Samples of one micro-batch on one GPU.
    pub(crate) local_batch: u32,
    /// Micro-batches before the one that ends the step.
    pub(crate) accumulation_steps: u32,
    /// Samples per second.
    pub(crate) throughput: f64,
    /// Progress per sample, 1 at the baseline batch.
    pub(crate) efficiency: f64,
    /// Throughput times efficiency.
    pub(crate) goodput: f64,
    /// Goodput per GPU relative to a single GPU.
    pub(crate) scaling_efficiency: f64,
}

/// How many GPUs to take, and what stands behind it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Recommendation {
    /// The count with the highest goodput among those of an accepted scaling efficiency; of equals the fewest.
    pub(crate) gpus: u32,
    /// At that count.
    pub(crate) scaling_efficiency: f64,
    /// At that count.
    pub(crate) goodput: f64,
    /// The least that is accepted.
    pub(crate) scaling_efficiency_min: f64,
    /// Where goodput is highest.
    pub(crate) peak_gpus: u32,
    /// All of it in one sentence.
    pub(crate) answer: String,
}

/// What the reader should know before trusting a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// No noise scale was given.
    EfficiencyAssumed,
    /// Nothing was measured on several GPUs, yet they are shown.
    SynchronisationAssumed,
    /// Nothing was measured across nodes, yet several are shown.
    InternodeAssumed,
    /// One local batch tells overhead and slope apart only by assumption.
    SingleLocalBatch {
        /// The one measured.
        local_batch: u32,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EfficiencyAssumed => {
                write!(
                    out,
                    "efficiency is assumed to be 1 at any batch; give --noise-scale PHI (samples) to predict it"
                )
            }
            Self::SynchronisationAssumed => {
                write!(out, "no step was measured on several GPUs; synchronisation is assumed to cost nothing")
            }
            Self::InternodeAssumed => {
                write!(out, "no step was measured on several nodes; links between nodes are assumed like those within")
            }
            Self::SingleLocalBatch { local_batch } => {
                write!(out, "only local batch {local_batch} was measured; half of its time is assumed to be overhead")
            }
        }
    }
}

impl Serialize for Row {
    /// Flat, and with the same names in every row: those of a missing batch are null.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let best = self.best.as_ref();
        let mut row = serializer.serialize_struct("Row", 9)?;
        row.serialize_field("gpus", &self.gpus)?;
        row.serialize_field("nodes", &self.nodes)?;
        row.serialize_field("batch_size", &best.map(|best| best.batch_size))?;
        row.serialize_field("local_batch", &best.map(|best| best.local_batch))?;
        row.serialize_field("accumulation_steps", &best.map(|best| best.accumulation_steps))?;
        row.serialize_field("throughput", &best.map(|best| best.throughput))?;
        row.serialize_field("efficiency", &best.map(|best| best.efficiency))?;
        row.serialize_field("goodput", &best.map(|best| best.goodput))?;
        row.serialize_field("scaling_efficiency", &best.map(|best| best.scaling_efficiency))?;
        row.end()
    }
}

impl Report {
    pub(super) fn new(
        settings: Settings,
        measurements: &Measurements,
        goodput: &Goodput,
        objective: f64,
    ) -> Result<Self, FitError> {
        let rows = rows(&settings, goodput)?;
        let limits = settings.limits;
        let recommendation = Recommendation::from_rows(&rows).ok_or(FitError::NoFeasibleBatch {
            gpus: settings.gpus,
            local_min: limits.local_batch_min(),
            local_max: limits.local_batch_max(),
            batch_min: limits.batch_size_baseline(),
            batch_max: limits.batch_size_max(),
        })?;
        Ok(Self {
            notes: notes(&settings, measurements),
            parameters: *goodput.throughput.params(),
            objective,
            error: PredictionError::of(&goodput.throughput, measurements),
            rows,
            recommendation,
            settings,
        })
    }
}

impl PredictionError {
    fn of(model: &ThroughputModel, measurements: &Measurements) -> Self {
        let error = |predicted_s: f64, measured_s: f64| (predicted_s / measured_s - 1.0).abs();
        let mut errors: Vec<f64> = measurements
            .cells()
            .map(|cell| error(model.step_s(cell.shape, f64::from(cell.local_batch), 0.0), cell.step_s))
            .collect();
        errors.sort_by(f64::total_cmp);
        let count = errors.len();
        Self {
            mean: errors.iter().sum::<f64>() / count as f64,
            median: f64::midpoint(errors[(count - 1) / 2], errors[count / 2]),
            max: errors[count - 1],
            cells: count,
            rows: measurements.rows(),
        }
    }
}

/// The best of every count from 1 on, each filling its nodes one after the other.
fn rows(settings: &Settings, goodput: &Goodput) -> Result<Vec<Row>, FitError> {
    // What any number of GPUs can run, one can run by accumulation: if there is a batch at all, the first row has it.
    let mut single = None;
    let row = |gpus: u32| {
        let shape = Shape::new(gpus.div_ceil(settings.gpus_per_node), gpus)?;
        let choice = match goodput.best(shape) {
            Ok(choice) => Some(choice),
            Err(ModelError::NoFeasibleBatch { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let best = choice.map(|choice| {
            let per_gpu = choice.goodput / f64::from(gpus);
            Best {
                batch_size: choice.batch_size(),
                local_batch: choice.local_batch,
                accumulation_steps: choice.accumulation_steps,
                throughput: choice.throughput,
                efficiency: choice.efficiency,
                goodput: choice.goodput,
                scaling_efficiency: per_gpu / *single.get_or_insert(per_gpu),
            }
        });
        Ok(Row { gpus, nodes: shape.nodes(), best })
    };
    (1..=settings.gpus).map(row).collect()
}

impl Recommendation {
    /// Nothing where no row has a batch.
    fn from_rows(rows: &[Row]) -> Option<Self> {
        let feasible = || rows.iter().filter_map(|row| Some((row.gpus, row.best?)));
        let (largest_gpus, _) = feasible().next_back()?;
        // Of equal goodputs the fewest GPUs are the peak, so that no GPU is taken for nothing.
        let (peak_gpus, peak) = feasible().rev().max_by(|(_, a), (_, b)| a.goodput.total_cmp(&b.goodput))?;
        let efficient = feasible().rev().filter(|(_, best)| best.scaling_efficiency >= SCALING_EFFICIENCY_MIN);
        let (gpus, best) = efficient.max_by(|(_, a), (_, b)| a.goodput.total_cmp(&b.goodput))?;
        let scaling = format!("{:.0}%", best.scaling_efficiency * 100.0);
        let answer = if gpus == rows.len() as u32 {
            format!("{} is the most shown, at a scaling efficiency of {scaling}; --gpus shows more", count(gpus))
        } else if gpus == largest_gpus {
            format!("{} is the most with a feasible batch, at a scaling efficiency of {scaling}", count(gpus))
        } else if gpus == peak_gpus {
            format!("goodput peaks at {}, at a scaling efficiency of {scaling}; more do not help", count(gpus))
        } else {
            let least = SCALING_EFFICIENCY_MIN * 100.0;
            let verb = if peak_gpus == largest_gpus { "is highest" } else { "peaks" };
            let (peak_count, gain) = (count(peak_gpus), peak.goodput / best.goodput);
            format!(
                "{} gives the most goodput at a scaling efficiency of {least:.0}% or more ({scaling}); goodput {verb} \
                 at {peak_count}, {gain:.1} times as high",
                count(gpus)
            )
        };
        Some(Self {
            gpus,
            scaling_efficiency: best.scaling_efficiency,
            goodput: best.goodput,
            scaling_efficiency_min: SCALING_EFFICIENCY_MIN,
            peak_gpus,
            answer,
        })
    }
}

/// A number of GPUs in words.
pub(super) fn count(gpus: u32) -> String {
    format!("{gpus} GPU{}", if gpus == 1 { "" } else { "s" })
}

fn notes(settings: &Settings, measurements: &Measurements) -> Vec<Note> {
    let (local_min, local_max) = (measurements.local_batch_min(), measurements.local_batch_max());
    let mut notes = Vec::new();
    if !settings.noise_scale_given {
        notes.push(Note::EfficiencyAssumed);
    }
    if settings.gpus > 1 && measurements.replicas_max() == 1 {
        notes.push(Note::SynchronisationAssumed);
    } else if settings.gpus > settings.gpus_per_node && !measurements.has_multi_node() {
        notes.push(Note::InternodeAssumed);
    }
    if local_min == local_max {
        notes.push(Note::SingleLocalBatch { local_batch: local_min });
    }
    notes
}
