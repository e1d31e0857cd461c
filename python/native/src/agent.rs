use pollux_agent::{AgentSettings, Placement, Progress, StepObservation, Tuning};
use pollux_model::{BatchLimits, BatchMode, GpuTypeName, GradientNorms, LoneReplica, Shape};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::NativeError;
use crate::json::{from_json, to_json};
use crate::scaling::{Raised, Scaling};

/// A tuning as Python has it: samples of a micro-batch, and micro-batches before the one that ends the step.
type TuningPair = (u32, u32);

/// What GPUs are called where nobody names them.
const DEFAULT_GPU_TYPE: &str = "gpu";

/// The per-job brain. One thread at a time may use it.
#[pyclass(module = "pollux")]
pub(crate) struct Agent {
    agent: pollux_agent::Agent,
    limits: BatchLimits,
    raised: Raised,
}

#[pymethods]
impl Agent {
    #[new]
    #[pyo3(signature = (*, batch_size, max_batch_size, local_batch_min, local_batch_max, scaling, warmup_epochs = 0.0,
        epoch_samples = None, state = None, lone_replica = "accumulates"))]
    #[expect(clippy::too_many_arguments, reason = "Python names them at the call")]
    fn new(
        batch_size: i64,
        max_batch_size: i64,
        local_batch_min: i64,
        local_batch_max: i64,
        scaling: Scaling,
        warmup_epochs: f64,
        epoch_samples: Option<u64>,
        state: Option<&str>,
        lone_replica: &str,
    ) -> Result<Self, NativeError> {
        let lone_replica = match lone_replica {
            "accumulates" => LoneReplica::Accumulates,
            "whole" => LoneReplica::Whole,
            value => {
                let accepted = "accumulates or whole";
                return Err(NativeError::Word { name: "lone_replica", value: value.to_owned(), accepted });
            }
        };
        let limits = BatchLimits::new(
            count("batch_size", batch_size)?,
            count("max_batch_size", max_batch_size)?,
            count("local_batch_min", local_batch_min)?,
            count("local_batch_max", local_batch_max)?,
        )?
        .with_lone_replica(lone_replica);
        let raised = Raised::default();
        let learning_rate = scaling.into_rule(warmup_epochs, &raised)?;
        let settings = AgentSettings { learning_rate, epoch_samples, ..AgentSettings::new(limits) };
        let agent = match state {
            None => pollux_agent::Agent::new(settings),
            Some(state) => pollux_agent::Agent::restore(settings, from_json("state", state, "what state() gave")?)?,
        };
        Ok(Self { agent, limits, raised })
    }

    #[getter]
    const fn relearns(&self) -> bool {
        self.agent.relearns()
    }

    fn state(&self) -> String {
        to_json(self.agent.state())
    }

    #[pyo3(signature = (nodes, replicas, local_batch, accumulation_steps, compute_s, sync_s, gpu_type = DEFAULT_GPU_TYPE))]
    #[expect(clippy::too_many_arguments, reason = "Python names them at the call")]
    fn observe_step(
        &mut self,
        nodes: u32,
        replicas: u32,
        local_batch: u32,
        accumulation_steps: u32,
        compute_s: f64,
        sync_s: f64,
        gpu_type: &str,
    ) -> Result<(), NativeError> {
        let placement = placement(nodes, replicas, gpu_type)?;
        let observation = StepObservation { placement, local_batch, accumulation_steps, compute_s, sync_s };
        Ok(self.agent.observe_step(&observation)?)
    }

    fn observe_gradients(
        &mut self,
        steps: u32,
        micro_batches: u32,
        batch_size: f64,
        micro_sqr: f64,
        mean_sqr: f64,
    ) -> bool {
        self.agent.observe_gradients(&GradientNorms { steps, micro_batches, batch_size, micro_sqr, mean_sqr })
    }

    fn observe_rate(&mut self, samples_per_s: f64) -> Result<(), NativeError> {
        Ok(self.agent.observe_rate(samples_per_s)?)
    }

    fn observe_loss(&mut self, loss: f64) -> Result<(), NativeError> {
        Ok(self.agent.observe_loss(loss)?)
    }

    fn advance(&mut self, steps: u64) {
        self.agent.advance(steps);
    }

    fn bound_batch_size(&mut self, max_batch_size: i64) -> Result<(), NativeError> {
        self.agent.bound_batch_size(count("max_batch_size", max_batch_size)?);
        Ok(())
    }

    #[pyo3(signature = (adapts, batch_size = None))]
    fn set_batch_mode(&mut self, adapts: bool, batch_size: Option<u32>) {
        self.agent.set_batch_mode(BatchMode::of(adapts, batch_size));
    }

    #[pyo3(signature = (nodes, replicas, gpu_type = DEFAULT_GPU_TYPE))]
    fn resize(&mut self, py: Python<'_>, nodes: u32, replicas: u32, gpu_type: &str) -> Result<TuningPair, NativeError> {
        let placement = placement(nodes, replicas, gpu_type)?;
        Ok(pair(py.detach(|| self.agent.resize(placement))?))
    }

    #[pyo3(signature = (nodes, replicas, local_batch, accumulation_steps, gpu_type = DEFAULT_GPU_TYPE))]
    fn run_fixed(
        &mut self,
        nodes: u32,
        replicas: u32,
        local_batch: u32,
        accumulation_steps: u32,
        gpu_type: &str,
    ) -> Result<(), NativeError> {
        self.agent.run_fixed(placement(nodes, replicas, gpu_type)?, Tuning { local_batch, accumulation_steps });
        Ok(())
    }

    fn end_epoch(&mut self, py: Python<'_>) -> Result<Option<TuningPair>, NativeError> {
        Ok(py.detach(|| self.agent.end_epoch())?.map(pair))
    }

    fn retune(&mut self, py: Python<'_>) -> Result<Option<TuningPair>, NativeError> {
        Ok(py.detach(|| self.agent.retune())?.map(pair))
    }

    fn learning_rate_factor(&self) -> PyResult<f64> {
        let factor = self.agent.learning_rate_factor();
        // An exception of the user's own says more than that it gave no number.
        if let Some(error) = self.raised.take() {
            return Err(error);
        }
        Ok(factor.map_err(NativeError::from)?)
    }

    fn gain(&self) -> f64 {
        self.agent.gain()
    }

    fn noise(&self) -> Option<(f64, f64)> {
        self.agent.noise().map(|noise| (noise.sqr(), noise.var()))
    }

    fn noise_scale(&self) -> Option<f64> {
        let noise = self.agent.likely_noise()?;
        Some(noise.noise_scale(self.limits.batch_size_baseline()).unwrap_or(f64::INFINITY))
    }

    fn efficiency(&self) -> f64 {
        self.agent.efficiency()
    }

    fn progress<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Progress { steps, samples, epochs, baseline_steps } = *self.agent.progress();
        let progress = PyDict::new(py);
        progress.set_item("steps", steps)?;
        progress.set_item("samples", samples)?;
        progress.set_item("epochs", epochs)?;
        progress.set_item("baseline_steps", baseline_steps)?;
        Ok(progress)
    }

    #[pyo3(signature = (samples = None, samples_per_s = None))]
    fn report(&mut self, py: Python<'_>, samples: Option<u64>, samples_per_s: Option<f64>) -> String {
        let mut report = py.detach(|| self.agent.report());
        // A rule that fails is told when its factor is asked for.
        drop(self.raised.take());
        report.progress.samples = samples.unwrap_or(report.progress.samples);
        report.samples_per_s = samples_per_s.or(report.samples_per_s);
        to_json(&report)
    }
}

fn count(name: &'static str, value: i64) -> Result<u32, NativeError> {
    u32::try_from(value).map_err(|_| NativeError::Count { name, value })
}

fn placement(nodes: u32, replicas: u32, gpu_type: &str) -> Result<Placement, NativeError> {
    Ok(Placement { shape: Shape::new(nodes, replicas)?, gpu_type: GpuTypeName::new(gpu_type)? })
}

const fn pair(tuning: Tuning) -> TuningPair {
    (tuning.local_batch, tuning.accumulation_steps)
}
