use std::time::Duration;

use pollux_worker::Orders;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::NativeError;
use crate::json::{from_json, to_python};

/// A replica's line to the scheduler.
#[pyclass(frozen, module = "pollux")]
pub(crate) struct Worker {
    worker: pollux_worker::Worker,
}

#[pymethods]
impl Worker {
    #[staticmethod]
    fn from_env(py: Python<'_>) -> PyResult<Option<Self>> {
        let Some(worker) = pollux_worker::Worker::from_env().map_err(NativeError::from)? else { return Ok(None) };
        let_children_end(py)?;
        Ok(Some(Self { worker }))
    }

    #[getter]
    fn job(&self) -> &str {
        &self.worker.connection().job
    }

    #[getter]
    fn replica(&self) -> u64 {
        self.worker.connection().replica
    }

    #[getter]
    fn generation(&self) -> u64 {
        self.worker.connection().generation
    }

    fn orders(&self) -> &'static str {
        match self.worker.orders() {
            Orders::Train => "train",
            Orders::Stop => "stop",
            Orders::Leave => "leave",
        }
    }

    fn assignment<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.worker.assignment().map(|assignment| to_python(py, &*assignment)).transpose()
    }

    fn report(&self, generation: u64, report: &str) -> Result<(), NativeError> {
        self.worker.report(generation, from_json("report", report, "what an agent's report() gave")?);
        Ok(())
    }

    #[pyo3(signature = (generation, pause_s = None))]
    fn ready(&self, generation: u64, pause_s: Option<f64>) {
        self.worker.ready(generation, pause_s);
    }

    fn finish(&self, py: Python<'_>, patience_s: f64) -> Result<bool, NativeError> {
        let patience = Duration::try_from_secs_f64(patience_s)
            .map_err(|_| NativeError::Seconds { name: "patience_s", value: patience_s })?;
        Ok(py.detach(|| self.worker.finish(patience)))
    }

    fn terminated(&self) -> bool {
        self.worker.terminated()
    }
}

/// Whether `SIGTERM` came, for programs without a scheduler.
#[pyclass(frozen, module = "pollux")]
pub(crate) struct Termination {
    termination: pollux_worker::Termination,
}

#[pymethods]
impl Termination {
    #[staticmethod]
    fn install(py: Python<'_>) -> PyResult<Self> {
        let termination = pollux_worker::Termination::install().map_err(NativeError::from)?;
        let_children_end(py)?;
        Ok(Self { termination })
    }

    fn requested(&self) -> bool {
        self.termination.requested()
    }
}

/// Forked children, such as those of `multiprocessing`, inherit that `SIGTERM` only sets a flag: nobody could end them.
fn let_children_end(py: Python<'_>) -> PyResult<()> {
    let signal = py.import("signal")?;
    let default = (signal.getattr("signal")?, signal.getattr("SIGTERM")?, signal.getattr("SIG_DFL")?);
    let restore = py.import("functools")?.call_method1("partial", default)?;
    let after = PyDict::new(py);
    after.set_item("after_in_child", restore)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&after))?;
    Ok(())
}
