use std::fmt;

use super::report::FitReport;
use crate::measurements::Measurements;

/// Above this, predictions are too far off to decide by. The paper's own fits stay below.
const ERROR_MEAN_MAX: f64 = 0.10;

/// What the reader should know before trusting a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Note {
    /// Predictions are far from what was measured.
    ErrorHigh {
        /// Mean relative error.
        mean: f64,
    },
    /// No noise scale was given.
    EfficiencyAssumed,
    /// Nothing was measured on several GPUs, yet they are shown.
    SynchronisationAssumed,
    /// Several GPUs were measured over several nodes only, yet several on one are shown.
    IntranodeAssumed,
    /// Nothing was measured across nodes, yet several are shown.
    InternodeAssumed,
    /// Nothing was measured beyond two GPUs, yet more are shown.
    FurtherGpusAssumed(Placed),
    /// More GPUs are shown than were measured.
    Extrapolated {
        /// The most measured.
        gpus_measured: u32,
    },
    /// One local batch tells overhead and slope apart only by assumption.
    SingleLocalBatch {
        /// The one measured.
        local_batch: u32,
    },
    /// One GPU accumulates only to learn how noisy its gradients are.
    SingleGpuAccumulates {
        /// The batch it may run whole.
        batch_size_baseline: u32,
    },
    /// Some counts have no batch up to a largest one that the user did not choose.
    NoBatchByDefault {
        /// How many of them.
        counts: usize,
        /// Counts shown.
        gpus: u32,
        /// The baseline batch.
        batch_min: u32,
        /// The default.
        batch_max: u32,
    },
}

/// Where the GPUs are that a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// On one or on several nodes.
    Anywhere,
    /// All on one.
    OnOneNode,
    /// On two or more.
    OverSeveralNodes,
}

impl fmt::Display for Note {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ErrorHigh { mean } => write!(
                out,
                "predicted step times are {:.1}% off on average, too much to rely on the answer; measure more \
                 configurations, or fit each job alone if several are pooled",
                mean * 100.0
            ),
            Self::EfficiencyAssumed => {
                out.write_str("efficiency is assumed to be 1 at any batch; give a noise_scale (samples) to predict it")
            }
            Self::SynchronisationAssumed => {
                out.write_str("no step was measured on several GPUs; synchronisation is assumed to cost nothing")
            }
            Self::IntranodeAssumed => out.write_str(
                "no step was measured on several GPUs of one node; synchronisation there is assumed to cost nothing",
            ),
            Self::InternodeAssumed => out.write_str(
                "no step was measured on several nodes; links between nodes are assumed to cost a tenth more than \
                 those within",
            ),
            Self::FurtherGpusAssumed(placed) => {
                let placed = match placed {
                    Placed::Anywhere => "",
                    Placed::OnOneNode => " of one node",
                    Placed::OverSeveralNodes => " over several nodes",
                };
                write!(
                    out,
                    "no step was measured on more than 2 GPUs{placed}; further ones are assumed to cost no \
                     synchronisation"
                )
            }
            Self::Extrapolated { gpus_measured } => {
                write!(out, "no step was measured on more than {gpus_measured} GPUs; rows beyond are extrapolated")
            }
            Self::SingleLocalBatch { local_batch } => {
                write!(out, "only local batch {local_batch} was measured; half of its time is assumed to be overhead")
            }
            Self::SingleGpuAccumulates { batch_size_baseline } => write!(
                out,
                "on 1 GPU a batch above the baseline of {batch_size_baseline} takes two micro-batches or more, because \
                 one gradient alone tells nothing of its noise; give a batch_size if the job's baseline is larger"
            ),
            Self::NoBatchByDefault { counts, gpus, batch_min, batch_max } => write!(
                out,
                "{counts} of {gpus} counts of GPUs have no batch within {batch_min}..{batch_max}; give a \
                 max_batch_size above {batch_max}, which is only the default"
            ),
        }
    }
}

/// Everything that should be said of a report, the gravest first.
pub(super) fn notes(report: &FitReport, measurements: &Measurements) -> Vec<Note> {
    let settings = &report.settings;
    let limits = &settings.limits;
    let mut notes = Vec::new();
    if report.error.mean > ERROR_MEAN_MAX {
        notes.push(Note::ErrorHigh { mean: report.error.mean });
    }
    if !settings.noise_scale_given {
        notes.push(Note::EfficiencyAssumed);
    }
    if settings.gpus > 1 {
        notes.extend(synchronisation_notes(settings.gpus, settings.gpus_per_node, measurements));
    }
    let (local_min, local_max) = (measurements.local_batch_min(), measurements.local_batch_max());
    if local_min == local_max {
        notes.push(Note::SingleLocalBatch { local_batch: local_min });
    }
    // On one GPU accumulation saves nothing, so that a baseline that fits it whole is only ever cut by that rule.
    let batch_size_baseline = limits.batch_size_baseline();
    let accumulates = report.rows[0].best.is_some_and(|best| best.accumulation_steps > 0);
    if accumulates && batch_size_baseline <= limits.local_batch_max() {
        notes.push(Note::SingleGpuAccumulates { batch_size_baseline });
    }
    let counts = report.rows.iter().filter(|row| row.best.is_none()).count();
    if counts > 0 && !settings.batch_size_max_given {
        let (gpus, batch_min, batch_max) = (settings.gpus, batch_size_baseline, limits.batch_size_max());
        notes.push(Note::NoBatchByDefault { counts, gpus, batch_min, batch_max });
    }
    notes
}

/// What is assumed of synchronisation where several GPUs are shown.
fn synchronisation_notes(gpus: u32, gpus_per_node: u32, measurements: &Measurements) -> Vec<Note> {
    let measured = measurements.replicas_max();
    if measured == 1 {
        return vec![Note::SynchronisationAssumed];
    }
    let (on_one_node, over_several) = (measurements.one_node_replicas_max(), measurements.multi_node_replicas_max());
    let shown_on_one_node = gpus.min(gpus_per_node);
    let shows_several_nodes = gpus > gpus_per_node;
    let mut notes = Vec::new();
    if shown_on_one_node > 1 && on_one_node < 2 {
        notes.push(Note::IntranodeAssumed);
    }
    if shows_several_nodes && over_several == 0 {
        notes.push(Note::InternodeAssumed);
    }
    if gpus > 2 && measured == 2 {
        notes.push(Note::FurtherGpusAssumed(Placed::Anywhere));
    } else if shown_on_one_node > 2 && on_one_node == 2 {
        notes.push(Note::FurtherGpusAssumed(Placed::OnOneNode));
    } else if gpus > 2 && shows_several_nodes && over_several == 2 {
        notes.push(Note::FurtherGpusAssumed(Placed::OverSeveralNodes));
    }
    if gpus > measured && measured > 2 {
        notes.push(Note::Extrapolated { gpus_measured: measured });
    }
    notes
}
