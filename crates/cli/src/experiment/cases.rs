//! Every simulation of an experiment: each row on each kind of workload, at each place of the axis.

use std::path::Path;

use pollux_policy::PolicySettings;
use pollux_sim::{ClusterSpec, GeneratorSettings, SimulationSettings, Workload, WorkloadError, generate, read_osdi21};
use toml::Value;

use super::ExperimentError;
use super::data::Data;
use super::file::{AxisSetting, ExperimentFile, Plot, RequestChoice, Row, Source, WorldSettings};
use crate::policy_settings::policy_settings;
use crate::sim::runs::Run;
use crate::sim::workloads::{Scenario, Seeded};

/// Published workloads of each kind.
const PUBLISHED: u32 = 4;
const CLUSTER: &str = "16x4";

/// What is simulated.
pub(super) struct Cases {
    /// The kinds of workload, by which tables and plots are divided.
    pub(super) sources: Vec<Source>,
    /// Of each row; an axis changes its settings only.
    pub(super) policies: Vec<PolicySettings>,
    /// Scenarios that several cases share.
    sets: Vec<ScenarioSet>,
    /// Kind of workload by kind, row by row, place by place.
    cases: Vec<Case>,
}

struct ScenarioSet {
    key: SetKey,
    scenarios: Vec<Scenario>,
}

/// What decides the jobs.
#[derive(Clone, PartialEq)]
struct SetKey {
    source: Source,
    requests: RequestChoice,
    load: f64,
    jobs: u32,
    gpus: u32,
}

struct Case {
    set: usize,
    settings: SimulationSettings,
}

impl Cases {
    /// Reads workloads and settles settings, so that mistakes are known before the work.
    pub(super) fn resolve(file: &ExperimentFile, folder: &Path, data: &Data) -> Result<Self, ExperimentError> {
        let mut cases =
            Self { sources: sources(file, data), policies: Vec::new(), sets: Vec::new(), cases: Vec::new() };
        for row in &file.rows {
            cases.policies.push(policy(file, row, 0)?);
        }
        for source in cases.sources.clone() {
            for row in &file.rows {
                for point in 0..file.points() {
                    let case = cases.case(file, folder, data, (&source, row, point))?;
                    cases.cases.push(case);
                }
            }
        }
        cases.check_job(file)?;
        Ok(cases)
    }

    /// Every simulation, case by case.
    pub(super) fn runs(&self) -> Vec<Run<'_>> {
        let of_case = |case: &Case| -> Vec<Run<'_>> {
            self.scenarios(case).iter().map(|scenario| (scenario, case.settings.clone())).collect()
        };
        self.cases.iter().flat_map(of_case).collect()
    }

    /// How many simulations each case has.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.cases.iter().map(|case| self.scenarios(case).len())
    }

    /// The workloads of a kind: what they are called and how many jobs they have, each once.
    pub(super) fn workloads(&self, source: &Source) -> Vec<(&str, usize)> {
        let mut workloads = Vec::new();
        for set in self.sets.iter().filter(|set| set.key.source == *source) {
            for scenario in &set.scenarios {
                let workload = (scenario.label.as_str(), scenario.workload.jobs().len());
                if !workloads.contains(&workload) {
                    workloads.push(workload);
                }
            }
        }
        workloads
    }

    /// A job that is to be drawn must be there.
    fn check_job(&self, file: &ExperimentFile) -> Result<(), ExperimentError> {
        let Plot::Timeline { job, .. } = &file.plot else { return Ok(()) };
        let lacks = |scenario: &&Scenario| !scenario.workload.jobs().iter().any(|other| other.name == *job);
        match self.sets.iter().flat_map(|set| set.scenarios.first()).find(lacks) {
            Some(scenario) => Err(ExperimentError::Job { job: job.clone(), workload: scenario.label.clone() }),
            None => Ok(()),
        }
    }

    fn scenarios(&self, case: &Case) -> &[Scenario] {
        &self.sets[case.set].scenarios
    }

    fn case(
        &mut self,
        file: &ExperimentFile,
        folder: &Path,
        data: &Data,
        (source, row, point): (&Source, &Row, usize),
    ) -> Result<Case, ExperimentError> {
        let world = world(file, row, point);
        let cluster =
            ClusterSpec::read(world.cluster.as_deref().unwrap_or(CLUSTER)).map_err(ExperimentError::Cluster)?;
        let key = SetKey {
            source: source.clone(),
            requests: row.requests,
            load: world.load.unwrap_or(1.0),
            jobs: world.jobs.unwrap_or(GeneratorSettings::default().jobs),
            gpus: u32::try_from(cluster.gpus()).unwrap_or(u32::MAX),
        };
        let published = SimulationSettings::new(policy(file, row, point)?, cluster);
        let settings = SimulationSettings {
            label: row.label.clone(),
            interval_s: world.interval_s.unwrap_or(published.interval_s),
            restart_delay_s: world.restart_delay_s.unwrap_or(published.restart_delay_s),
            interference: world.interference.unwrap_or(published.interference),
            declare_epochs: world.declare_epochs.unwrap_or(published.declare_epochs),
            record_series: matches!(file.plot, Plot::Timeline { .. }),
            ..published
        };
        let known = self.sets.iter().position(|set| set.key == key);
        let set = match known {
            Some(set) => set,
            None => {
                let scenarios = scenarios(&key, &file.seeds, folder, data)?;
                self.sets.push(ScenarioSet { key, scenarios });
                self.sets.len() - 1
            }
        };
        Ok(Case { set, settings })
    }
}

/// The kinds of workload; generated jobs stand in for published ones that are not at hand.
fn sources(file: &ExperimentFile, data: &Data) -> Vec<Source> {
    let mut sources = Vec::new();
    for source in &file.workloads {
        let source = match source {
            Source::Published if data.published.is_none() => &Source::Generated,
            Source::Published | Source::Generated | Source::File(_) => source,
        };
        if !sources.contains(source) {
            sources.push(source.clone());
        }
    }
    sources
}

/// The world of a row at a place of the axis.
pub(super) fn world(file: &ExperimentFile, row: &Row, point: usize) -> WorldSettings {
    let mut world = row.settings.over(&file.settings);
    if let Some(axis) = &file.axis {
        let value = Some(axis.values[point]);
        match axis.setting {
            AxisSetting::Load => world.load = value,
            AxisSetting::Interval => world.interval_s = value,
            AxisSetting::RestartDelay => world.restart_delay_s = value,
            AxisSetting::Interference => world.interference = value,
            AxisSetting::Policy(_) => {}
        }
    }
    world
}

fn policy(file: &ExperimentFile, row: &Row, point: usize) -> Result<PolicySettings, ExperimentError> {
    let mut table = row.policy.0.clone();
    if let Some(axis) = &file.axis
        && let AxisSetting::Policy(setting) = &axis.setting
    {
        let value = axis.values[point];
        // A whole number will do for any number, a fraction not for a whole one.
        let value = if value.fract() == 0.0 { Value::Integer(value as i64) } else { Value::Float(value) };
        table.insert(setting.clone(), value);
    }
    policy_settings(table).map_err(|reason| ExperimentError::Policy { row: row.label.clone(), reason })
}

fn scenarios(key: &SetKey, seeds: &[u64], folder: &Path, data: &Data) -> Result<Vec<Scenario>, ExperimentError> {
    let given = |path: &Path, workloads: &'static str| {
        if key.load != 1.0 {
            return Err(ExperimentError::Load { load: key.load, workloads });
        }
        let workload = read_osdi21(path).map_err(ExperimentError::Workload)?;
        Ok(Scenario { label: workload.name().to_owned(), seed: 0, seeded: Seeded::Nothing, workload })
    };
    match (&key.source, &data.published) {
        (Source::File(file), _) => Ok(vec![given(&folder.join(file), "given")?]),
        (Source::Published, Some(published)) => {
            let folder = published.join(match key.requests {
                RequestChoice::Tuned => "workloads",
                RequestChoice::Realistic => "workloads-realistic",
            });
            (1..=PUBLISHED).map(|number| given(&folder.join(format!("workload-{number}.csv")), "published")).collect()
        }
        (Source::Generated, _) | (Source::Published, None) => {
            let scenario = |&seed| {
                let workload: Result<Workload, WorkloadError> = generate(
                    &GeneratorSettings {
                        jobs: key.jobs,
                        load: key.load,
                        seed,
                        requested_replicas_max: key.gpus,
                        requests: key.requests.requests(),
                    },
                    &data.applications,
                );
                let workload = workload.map_err(ExperimentError::Workload)?;
                Ok(Scenario { label: workload.name().to_owned(), seed, seeded: Seeded::Jobs, workload })
            };
            seeds.iter().map(scenario).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pollux_sim::ApplicationSet;

    use super::*;

    #[test]
    fn every_experiment_in_the_repository_can_be_run_without_recorded_data() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let data = Data { applications: ApplicationSet::parametric(), published: None };
        let mut read = 0;
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.join("experiment.toml").exists() {
                let file = ExperimentFile::read(&path).unwrap_or_else(|error| panic!("{error}"));
                let cases = Cases::resolve(&file, &path, &data).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(cases.cases.len(), cases.sources.len() * file.rows.len() * file.points());
                read += 1;
            }
        }
        assert!(read >= 6, "{read} experiments");
    }
}
