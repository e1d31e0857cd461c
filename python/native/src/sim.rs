use std::path::PathBuf;

use pollux_lab::{NodeRange, SimOptions};
use pollux_policy::PolicySettings;
use pollux_sim::{ApplicationSet, ClusterSample, JobOutcome, Requests, RunOutcome, Summary};
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
struct SimRequest {
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
    let request: SimRequest = options.extract()?;
    let outcome = py.detach(|| request.simulate(&applications.applications))?;
    let run = Run {
        policy: &outcome.policy,
        workload: &outcome.workload,
        seed: request.seed(),
        summary: outcome.summary(),
        jobs: &outcome.jobs,
        cluster: &outcome.cluster,
    };
    to_python(py, &run)
}

impl SimRequest {
    fn simulate(&self, applications: &ApplicationSet) -> Result<RunOutcome, NativeError> {
        let options = SimOptions {
            policies: vec![(self.label.clone(), self.policy()?)],
            workloads: self.workload.iter().cloned().collect(),
            cluster: self.cluster.clone(),
            autoscale: self.autoscale.map(|(min, max)| NodeRange { min, max }),
            interval_s: self.interval,
            restart_delay_s: self.restart_delay,
            resume_delay_s: self.resume_delay,
            interference: self.interference,
            declare_epochs: self.declare_epochs,
            failures: self.failures,
            failure_seed: self.failure_seed,
            generate_jobs: self.generate_jobs,
            load: self.load,
            requests: self.requests()?,
            seeds: self.seed.into_iter().collect(),
            series: self.series,
            // Python runs several of these at once.
            threads: Some(1),
            ..SimOptions::default()
        };
        let outcomes = pollux_lab::outcomes(&options, applications, &|_progress| {})?;
        Ok(outcomes.into_iter().next().expect("one policy and one workload are one run"))
    }

    fn policy(&self) -> Result<PolicySettings, NativeError> {
        if !self.policy.starts_with('{') {
            return Ok(PolicySettings::named(&self.policy)?);
        }
        let settings: PolicySettings = from_json("policy", &self.policy, "a policy and settings of it")?;
        settings.check()?;
        Ok(settings)
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
