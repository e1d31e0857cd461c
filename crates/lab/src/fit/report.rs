use pollux_model::{Goodput, ModelError, Shape, StepParams, ThroughputModel};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::FitError;
use super::note::{Note, notes};
use super::settings::FitSettings;
use crate::measurements::Measurements;

/// Below this, more than half of what further GPUs could do is lost.
pub const SCALING_EFFICIENCY_MIN: f64 = 0.5;

/// What a fit found out.
#[derive(Debug, Serialize)]
pub struct FitReport {
    /// What it was made with.
    pub settings: FitSettings,
    /// Fitted parameters.
    pub parameters: StepParams,
    /// What the fit made small.
    pub objective: f64,
    /// How far predictions are from measurements.
    pub error: PredictionError,
    /// One for each number of GPUs.
    pub rows: Vec<Row>,
    /// How many GPUs to take.
    pub recommendation: Recommendation,
    /// What the reader should know before trusting it.
    #[serde(skip)]
    pub notes: Vec<Note>,
    /// What was fitted, for the plot.
    #[serde(skip)]
    pub(super) model: ThroughputModel,
}

/// Absolute relative errors of predicted step times, over all measured cells.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PredictionError {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Largest.
    pub max: f64,
    /// Different placements and local batches.
    pub cells: usize,
    /// Measured steps.
    pub rows: u64,
}

/// A number of GPUs and the best it can do.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// GPUs, one replica each.
    pub gpus: u32,
    /// Nodes they fill.
    pub nodes: u32,
    /// Nothing where no batch fits the limits.
    pub best: Option<Best>,
}

/// The batch with the highest goodput, and what it is worth.
#[derive(Clone, Copy, Debug)]
pub struct Best {
    /// Total batch.
    pub batch_size: u32,
    /// Samples of one micro-batch on one GPU.
    pub local_batch: u32,
    /// Micro-batches before the one that ends the step.
    pub accumulation_steps: u32,
    /// Samples per second.
    pub throughput: f64,
    /// Progress per sample, 1 at the baseline batch.
    pub efficiency: f64,
    /// Throughput times efficiency.
    pub goodput: f64,
    /// Goodput per GPU relative to a single GPU.
    pub scaling_efficiency: f64,
}

/// How many GPUs to take, and what stands behind it.
#[derive(Clone, Debug, Serialize)]
pub struct Recommendation {
    /// The count with the highest goodput among those of an accepted scaling efficiency; of equals the fewest.
    pub gpus: u32,
    /// At that count.
    pub scaling_efficiency: f64,
    /// At that count.
    pub goodput: f64,
    /// The least that is accepted.
    pub scaling_efficiency_min: f64,
    /// Where goodput is highest.
    pub peak_gpus: u32,
    /// All of it in one sentence.
    pub answer: String,
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

impl FitReport {
    pub(super) fn new(
        settings: FitSettings,
        measurements: &Measurements,
        goodput: Goodput,
        objective: f64,
    ) -> Result<Self, FitError> {
        let rows = rows(&settings, &goodput)?;
        let limits = settings.limits;
        let recommendation = Recommendation::from_rows(&rows).ok_or(FitError::NoFeasibleBatch {
            gpus: settings.gpus,
            local_min: limits.local_batch_min(),
            local_max: limits.local_batch_max(),
            batch_min: limits.batch_size_baseline(),
            batch_max: limits.batch_size_max(),
        })?;
        let mut report = Self {
            parameters: *goodput.throughput.params(),
            objective,
            error: PredictionError::of(&goodput.throughput, measurements),
            rows,
            recommendation,
            settings,
            notes: Vec::new(),
            model: goodput.throughput,
        };
        report.notes = notes(&report, measurements);
        Ok(report)
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
fn rows(settings: &FitSettings, goodput: &Goodput) -> Result<Vec<Row>, FitError> {
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
        let scaling = percent(best.scaling_efficiency);
        let answer = if gpus == rows.len() as u32 {
            format!("{} is the most shown, at a scaling efficiency of {scaling}; more gpus can be shown", count(gpus))
        } else if gpus == largest_gpus {
            format!("{} is the most with a feasible batch, at a scaling efficiency of {scaling}", count(gpus))
        } else if gpus == peak_gpus {
            format!("goodput peaks at {}, at a scaling efficiency of {scaling}; more do not help", count(gpus))
        } else {
            let least = SCALING_EFFICIENCY_MIN * 100.0;
            let verb = if peak_gpus == largest_gpus { "is highest" } else { "peaks" };
            let gain = format!("{:.1} times as high", peak.goodput / best.goodput);
            let gain = if gain.starts_with("1.0 ") { "hardly higher" } else { &gain };
            format!(
                "{} gives the most goodput at a scaling efficiency of {least:.0}% or more ({scaling}); goodput {verb} \
                 at {}, {gain}",
                count(gpus),
                count(peak_gpus)
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

/// A scaling efficiency in words: whole percents, and a tenth where it would be unclear whether it is accepted.
pub fn percent(scaling_efficiency: f64) -> String {
    let is_close = (scaling_efficiency - SCALING_EFFICIENCY_MIN).abs() <= 0.006;
    // Cut, not rounded: what lies below the least must not read like it.
    if is_close {
        format!("{:.1}%", (scaling_efficiency * 1000.0).floor() / 10.0)
    } else {
        format!("{:.0}%", scaling_efficiency * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row for each count from 1 on, with the given goodputs.
    fn answer(goodputs: &[f64]) -> String {
        let row = |(gpus, &goodput): (u32, &f64)| Row {
            gpus,
            nodes: 1,
            best: Some(Best {
                batch_size: gpus,
                local_batch: 1,
                accumulation_steps: 0,
                throughput: goodput,
                efficiency: 1.0,
                goodput,
                scaling_efficiency: goodput / (f64::from(gpus) * goodputs[0]),
            }),
        };
        let rows: Vec<Row> = (1..).zip(goodputs).map(row).collect();
        Recommendation::from_rows(&rows).unwrap().answer
    }

    #[test]
    fn percents_show_on_which_side_of_the_least_they_are() {
        let shown = [1.0, 0.512, 0.503, 0.5, 0.49999, 0.4951, 0.488, 0.0].map(percent);
        assert_eq!(shown, ["100%", "51%", "50.3%", "50.0%", "49.9%", "49.5%", "49%", "0%"]);
    }

    #[test]
    fn the_answer_says_how_much_higher_the_peak_is() {
        let accepted = "2 GPUs gives the most goodput at a scaling efficiency of 50% or more (50.1%); goodput";
        assert_eq!(answer(&[1000.0, 1002.0, 1300.0]), format!("{accepted} is highest at 3 GPUs, 1.3 times as high"));
        assert_eq!(answer(&[1000.0, 1002.0, 1003.0]), format!("{accepted} is highest at 3 GPUs, hardly higher"));
        assert_eq!(answer(&[1000.0, 1002.0, 1003.0, 9.0]), format!("{accepted} peaks at 3 GPUs, hardly higher"));
    }
}
