use pollux_model::{BatchLimits, NoiseStatistics, Observation, Parallelism, Shape, StepParams, ThroughputModel};
use pyo3::prelude::*;

use crate::error::NativeError;

/// Goodput of data-parallel training as a function of what it runs on.
#[pyclass(frozen, module = "pollux")]
pub(crate) struct Goodput {
    throughput: ThroughputModel,
    noise: NoiseStatistics,
    batch_size: u32,
}

#[pymethods]
impl Goodput {
    #[new]
    #[pyo3(signature = (*, parameters, noise_sqr, noise_var, batch_size))]
    fn new(parameters: [f64; 7], noise_sqr: f64, noise_var: f64, batch_size: u32) -> Result<Self, NativeError> {
        let throughput = Parallelism::DataParallel.model(StepParams::from_array(parameters))?;
        // Refuses a batch of nothing.
        BatchLimits::new(batch_size, batch_size, 1, 1)?;
        Ok(Self { throughput, noise: NoiseStatistics::new(noise_sqr, noise_var)?, batch_size })
    }

    fn step_s(&self, nodes: u32, replicas: u32, local_batch: f64, accumulation_steps: f64) -> Result<f64, NativeError> {
        Ok(self.throughput.step_s(Shape::new(nodes, replicas)?, local_batch, accumulation_steps))
    }

    fn efficiency(&self, batch_size: f64) -> f64 {
        self.noise.efficiency(batch_size / f64::from(self.batch_size))
    }

    #[pyo3(signature = (nodes, replicas, *, max_batch_size, local_batch_min, local_batch_max))]
    fn best(
        &self,
        nodes: u32,
        replicas: u32,
        max_batch_size: u32,
        local_batch_min: u32,
        local_batch_max: u32,
    ) -> Result<(u32, u32, f64), NativeError> {
        let limits = BatchLimits::new(self.batch_size, max_batch_size, local_batch_min, local_batch_max)?;
        let goodput = pollux_model::Goodput { throughput: self.throughput, noise: self.noise, limits };
        let best = goodput.best(Shape::new(nodes, replicas)?)?;
        Ok((best.local_batch, best.accumulation_steps, best.goodput))
    }
}

/// Parameters of the step times of data-parallel training that tell measured ones best.
#[pyfunction]
pub(crate) fn fit_steps(py: Python<'_>, rows: Vec<(u32, u32, u32, f64, f64)>) -> Result<[f64; 7], NativeError> {
    let observed = |(nodes, replicas, local_batch, compute_s, step_s)| {
        Ok(Observation { shape: Shape::new(nodes, replicas)?, local_batch, compute_s, step_s })
    };
    let observations = rows.into_iter().map(observed).collect::<Result<Vec<_>, NativeError>>()?;
    let fit = py.detach(|| pollux_model::fit(Parallelism::DataParallel, &observations, None))?;
    Ok(fit.model.params().to_array())
}
