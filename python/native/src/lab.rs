use std::path::PathBuf;

use pollux_lab::{
    ExperimentError, ExperimentOptions, ExperimentReport, FitOptions, FitReport, LocalBatchRange, Measurements,
};
use pollux_model::Parallelism;
use pyo3::prelude::*;
use serde::Serialize;

use crate::error::NativeError;
use crate::json::to_python;

/// A fit, by the names that `pollux fit` has for its options.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct FitRequest {
    files: Vec<PathBuf>,
    /// CSV text, where no file is given.
    rows: Option<String>,
    batch_size: Option<u32>,
    max_batch_size: Option<u32>,
    local_batch: (Option<u32>, Option<u32>),
    noise_scale: Option<f64>,
    gpus: Option<u32>,
    gpus_per_node: Option<u32>,
    parallelism: String,
    svg: bool,
}

/// A report, and what stands beside it.
#[derive(Serialize)]
struct WithNotes<'a, Report: Serialize> {
    #[serde(flatten)]
    report: &'a Report,
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    svg: Option<String>,
}

/// Fits a throughput model to measured steps.
#[pyfunction]
pub(crate) fn fit<'py>(py: Python<'py>, options: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let request: FitRequest = options.extract()?;
    let (report, svg) = py.detach(|| request.fit())?;
    let notes = report.notes.iter().map(ToString::to_string).collect();
    to_python(py, &WithNotes { report: &report, notes, svg })
}

/// Runs the experiment of a folder and saves its table and plot.
#[pyfunction]
#[pyo3(signature = (folder, data = None, out = None, threads = None))]
pub(crate) fn experiment(
    py: Python<'_>,
    folder: PathBuf,
    data: Option<PathBuf>,
    out: Option<PathBuf>,
    threads: Option<u16>,
) -> PyResult<Bound<'_, PyAny>> {
    let options = ExperimentOptions { folder, data, out, threads };
    let run = || -> Result<ExperimentReport, ExperimentError> { pollux_lab::experiment(&options, &|_progress| {}) };
    let report = py.detach(run).map_err(NativeError::from)?;
    to_python(py, &WithNotes { report: &report, notes: report.notes.clone(), svg: None })
}

impl FitRequest {
    fn fit(&self) -> Result<(FitReport, Option<String>), NativeError> {
        let mut measurements = Measurements::default();
        let mut sources = Vec::new();
        for path in &self.files {
            measurements.read_file(path, &mut |_rows| {})?;
            sources.push(path.display().to_string());
        }
        if let Some(rows) = &self.rows {
            measurements.read("rows", rows.as_bytes(), &mut |_rows| {})?;
            sources.push("rows".to_owned());
        }
        let (min, max) = self.local_batch;
        let options = FitOptions {
            batch_size: self.batch_size,
            max_batch_size: self.max_batch_size,
            local_batch: LocalBatchRange { min, max },
            noise_scale: self.noise_scale,
            gpus: self.gpus,
            gpus_per_node: self.gpus_per_node,
            parallelism: self.parallelism()?,
        };
        let report = pollux_lab::fit(&measurements, sources, &options)?;
        let svg = self.svg.then(|| report.plot(&measurements)).transpose()?;
        Ok((report, svg))
    }

    fn parallelism(&self) -> Result<Parallelism, NativeError> {
        match self.parallelism.as_str() {
            "data-parallel" => Ok(Parallelism::DataParallel),
            "sharded" => Ok(Parallelism::Sharded),
            other => {
                let (name, value) = ("parallelism", other.to_owned());
                Err(NativeError::Word { name, value, accepted: "data-parallel, sharded" })
            }
        }
    }
}
