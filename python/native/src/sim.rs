use std::path::PathBuf;

use pollux_policy::{AutoscalerSettings, PolicySettings};
use pollux_sim::{
    ApplicationSet, Autoscale, ClusterSample, ClusterSpec, Failures, GeneratorSettings, JobOutcome, NodeGroup,
    PhillySettings, Requests, RunOutcome, SimulationSettings, Summary, Workload, generate, is_philly, read_osdi21,
    read_philly, resample,
};
use pyo3::prelude::*;
use serde::Serialize;

use crate::error::NativeError;
use crate::json::{from_json, to_python};

/// What training jobs really do: the profiles that ship, or measured applications.
#[pyclass(frozen, module = "pollux.sim")]
pub(crate) struct Applications {
    applications: ApplicationSet,
}

#[pymethods]
impl Applications {
    #[new]
    #[pyo3(signature = (traces = None))]
    fn new(py: Python<'_>, traces: Option<PathBuf>) -> Result<Self, NativeError> {
        let applications = match traces {
            None => ApplicationSet::parametric(),
            Some(traces) => py.detach(|| ApplicationSet::recorded(&traces))?,
        };
        Ok(Self { applications })
    }
}

/// One simulation, by the names that `pollux sim` has for its options.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct SimOptions {
    /// A name, or settings in JSON.
    policy: String,
    label: String,
    workload: Option<PathBuf>,
    cluster: String,
    autoscale: Option<(u32, u32)>,
    interval: f64,
    restart_delay: f64,
    resume_delay: Option<f64>,
    interference: f64,
    declare_epochs: bool,
    failures: f64,
    failure_seed: Option<u64>,
    generate_jobs: u32,
    load: Option<f64>,
    requests: String,
    seed: Option<u64>,
    series: bool,
}

/// What became of it, as `pollux sim -o json` tells it.
#[derive(Serialize)]
struct Run<'a> {
    policy: &'a str,
    workload: &'a str,
    seed: u64,
    #[serde(flatten)]
    summary: Summary,
    jobs: &'a [JobOutcome],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cluster: &'a [ClusterSample],
}

/// Simulates a workload under a policy.
#[pyfunction]
pub(crate) fn simulate<'py>(
    py: Python<'py>,
    applications: &Applications,
    options: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let options: SimOptions = options.extract()?;
    let outcome = py.detach(|| options.simulate(&applications.applications))?;
    let run = Run {
        policy: &outcome.policy,
        workload: &outcome.workload,
        seed: options.seed(),
        summary: outcome.summary(),
        jobs: &outcome.jobs,
        cluster: &outcome.cluster,
    };
    to_python(py, &run)
}

impl SimOptions {
    fn simulate(&self, applications: &ApplicationSet) -> Result<RunOutcome, NativeError> {
        let settings = self.settings()?;
        let workload = self.workload(applications, &settings.cluster)?;
        Ok(pollux_sim::simulate(&settings, applications, &workload, &mut |_finished| {})?)
    }

    fn settings(&self) -> Result<SimulationSettings, NativeError> {
        Ok(SimulationSettings {
            label: self.label.clone(),
            interval_s: self.interval,
            restart_delay_s: self.restart_delay,
            resume_delay_s: self.resume_delay,
            interference: self.interference,
            declare_epochs: self.declare_epochs,
            failures: Failures {
                per_node_day: self.failures,
                seed: self.failure_seed.unwrap_or(self.seed()),
                ..Failures::NONE
            },
            autoscale: self.autoscale.map(|(nodes_min, nodes_max)| Autoscale {
                settings: AutoscalerSettings { nodes_min, nodes_max, ..AutoscalerSettings::default() },
                ..Autoscale::default()
            }),
            record_series: self.series,
            ..SimulationSettings::new(self.policy()?, self.cluster()?)
        })
    }

    fn policy(&self) -> Result<PolicySettings, NativeError> {
        if !self.policy.starts_with('{') {
            return Ok(PolicySettings::named(&self.policy)?);
        }
        let settings: PolicySettings = from_json("policy", &self.policy, "a policy and settings of it")?;
        settings.check()?;
        Ok(settings)
    }

    /// Where nodes come and go, with as many as there may be.
    fn cluster(&self) -> Result<ClusterSpec, NativeError> {
        let given = ClusterSpec::read(&self.cluster)?;
        match (self.autoscale, given.groups()) {
            (Some((_, count)), [group]) if count > 0 => {
                Ok(ClusterSpec::new(vec![NodeGroup { count, ..group.clone() }])?)
            }
            _ => Ok(given), // The simulator says what is wrong with groups that are not alike, or a range of none.
        }
    }

    fn workload(&self, applications: &ApplicationSet, cluster: &ClusterSpec) -> Result<Workload, NativeError> {
        let (seed, load, requests) = (self.seed(), self.load.unwrap_or(1.0), self.requests()?);
        let requested_replicas_max = u32::try_from(cluster.gpus()).unwrap_or(u32::MAX);
        let Some(path) = &self.workload else {
            let jobs = self.generate_jobs;
            let settings = GeneratorSettings { jobs, load, seed, requested_replicas_max, requests };
            return Ok(generate(&settings, applications)?);
        };
        if is_philly(path).map_err(|reason| NativeError::File { path: path.clone(), reason })? {
            let jobs = (f64::from(self.generate_jobs) * load).round() as usize;
            let settings = PhillySettings { jobs, seed, requested_replicas_max, requests, ..PhillySettings::default() };
            return Ok(read_philly(path, &settings, applications)?);
        }
        let given = read_osdi21(path)?;
        // As given, unless another load is asked for, or a draw.
        let draws = self.load.is_some_and(|load| load != 1.0 || self.seed.is_some());
        Ok(if draws { resample(&given, load, seed)? } else { given })
    }

    fn requests(&self) -> Result<Requests, NativeError> {
        Requests::named(&self.requests).ok_or_else(|| {
            let (name, value) = ("requests", self.requests.clone());
            NativeError::Word { name, value, accepted: "tuned, realistic" }
        })
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or(0)
    }
}
