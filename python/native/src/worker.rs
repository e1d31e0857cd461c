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
    fn host(&self) -> &str {
        &self.worker.connection().host
    }

    #[getter]
    fn generation(&self) -> u64 {
        self.worker.connection().generation
    }

    fn answered(&self, patience_s: f64) -> Result<bool, NativeError> {
        Ok(self.worker.answered(seconds("patience_s", patience_s)?)?)
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

    fn publish_rendezvous(&self, generation: u64, port: u16) {
        self.worker.publish_rendezvous(generation, port);
    }

    fn finish(&self, py: Python<'_>, patience_s: f64) -> Result<bool, NativeError> {
        let patience = seconds("patience_s", patience_s)?;
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

fn seconds(name: &'static str, value: f64) -> Result<Duration, NativeError> {
    Duration::try_from_secs_f64(value).map_err(|_| NativeError::Seconds { name, value })
}

/// Forked children, such as those of `multiprocessing`, inherit that `SIGTERM` only sets a flag: nobody could end them.
/// One that comes while they are made waits until they are as they should be.
fn let_children_end(py: Python<'_>) -> PyResult<()> {
    let signal = py.import("signal")?;
    let partial = py.import("functools")?.getattr("partial")?;
    let terminate = signal.getattr("SIGTERM")?;
    let mask = |how: &str| partial.call1((signal.getattr("pthread_sigmask")?, signal.getattr(how)?, [&terminate]));
    let restore = partial.call1((signal.getattr("signal")?, &terminate, signal.getattr("SIG_DFL")?))?;
    // In the child they are called in the order in which they are given here.
    at_fork(py, &[("before", mask("SIG_BLOCK")?), ("after_in_child", restore)])?;
    at_fork(py, &[("after_in_parent", mask("SIG_UNBLOCK")?), ("after_in_child", mask("SIG_UNBLOCK")?)])
}

fn at_fork<'py>(py: Python<'py>, calls: &[(&str, Bound<'py, PyAny>)]) -> PyResult<()> {
    let given = PyDict::new(py);
    for (name, call) in calls {
        given.set_item(name, call)?;
    }
    py.import("os")?.call_method("register_at_fork", (), Some(&given))?;
    Ok(())
}
