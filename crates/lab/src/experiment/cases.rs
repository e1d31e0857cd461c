//! Every simulation of an experiment: each row on each kind of workload, at each place of the axis.

use std::fs;
use std::path::{Path, PathBuf};

use pollux_policy::PolicySettings;
use pollux_sim::{
    ClusterSpec, GeneratorSettings, NodeGroup, Requests, SimulationSettings, Sweep, Workload, WorkloadError, generate,
    read_osdi21, repeat, resample,
};
use toml::Value;

use super::ExperimentError;
use super::data::Data;
use super::file::{AxisSetting, ExperimentFile, Plot, Row, Source, SweepShape, Trial, WorldSettings};
use super::outcome::Work;
use crate::policy_settings::policy_settings;
use crate::sim::workloads::{Scenario, Seeded};

/// Published workloads of each kind.
const PUBLISHED: u32 = 4;
pub(super) const CLUSTER: &str = "16x4";
/// What shipped profiles call the types of GPU of recorded ones.
const SHIPPED_TYPES: [(&str, &str); 3] = [("aws", "t4"), ("rtx", "rtx2080ti"), ("dgx-ext", "a100")];

/// What is simulated.
pub(super) struct Cases {
    /// The kinds of workload, by which tables and plots are divided.
    pub(super) sources: Vec<Source>,
    /// Of each row; an axis changes its settings only.
    pub(super) policies: Vec<PolicySettings>,
    /// Work that several cases share.
    sets: Vec<WorkSet>,
    /// Kind of workload by kind, row by row, place by place.
    cases: Vec<Case>,
}

struct WorkSet {
    key: SetKey,
    works: Vec<Work>,
}

/// What decides the jobs.
#[derive(Clone, PartialEq)]
struct SetKey {
    source: Source,
    requests: Requests,
    trial: Option<Trial>,
    load: f64,
    jobs: u32,
    gpus: u32,
    /// Each job comes so many times.
    copies: u32,
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
    pub(super) fn works(&self) -> Vec<(&Work, &Source, &SimulationSettings)> {
        let source = |case: &Case| &self.sets[case.set].key.source;
        let of_case = |case| self.works_of(case).iter().map(move |work| (work, source(case), &case.settings));
        self.cases.iter().flat_map(of_case).collect()
    }

    /// How many simulations each case has.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.cases.iter().map(|case| self.works_of(case).len())
    }

    /// The workloads of a kind: what they are called and how many jobs they have, each once.
    pub(super) fn workloads(&self, source: &Source) -> Vec<(String, usize)> {
        let mut workloads = Vec::new();
        for set in self.sets.iter().filter(|set| set.key.source == *source) {
            for work in &set.works {
                let workload = (work.label(), work.jobs());
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
        let has = |work: &Work| match work {
            Work::Scenario(scenario) => scenario.workload.jobs().iter().any(|other| other.name == *job),
            Work::Sweep(_) => false,
        };
        let drawn = self.sets.iter().filter(|set| set.key.source == self.sources[0]);
        match drawn.flat_map(|set| set.works.first()).find(|work| !has(work)) {
            Some(work) => Err(ExperimentError::Job { job: job.clone(), workload: work.label() }),
            None => Ok(()),
        }
    }

    fn works_of(&self, case: &Case) -> &[Work] {
        &self.sets[case.set].works
    }

    fn case(
        &mut self,
        file: &ExperimentFile,
        folder: &Path,
        data: &Data,
        (source, row, point): (&Source, &Row, usize),
    ) -> Result<Case, ExperimentError> {
        let world = world(file, row, point);
        let copies = world.scale.unwrap_or(1);
        let cluster = cluster(folder, &world, source)?;
        let key = SetKey {
            source: source.clone(),
            requests: row.requests,
            trial: row.trial,
            load: world.load.unwrap_or(1.0),
            jobs: world.jobs.unwrap_or(GeneratorSettings::default().jobs),
            gpus: u32::try_from(cluster.gpus()).unwrap_or(u32::MAX),
            copies,
        };
        let published = SimulationSettings::new(policy(file, row, point)?, cluster);
        let settings = SimulationSettings {
            label: row.label.clone(),
            interval_s: world.interval_s.unwrap_or(published.interval_s),
            restart_delay_s: world.restart_delay_s.unwrap_or(published.restart_delay_s),
            resume_delay_s: world.resume_delay_s,
            resize_delay_s: world.resize_delay_s,
            interference: world.interference.unwrap_or(published.interference),
            declare_epochs: world.declare_epochs.unwrap_or(published.declare_epochs),
            autoscale: world.autoscale,
            tune_for: world.tune_for.unwrap_or(published.tune_for),
            record_series: matches!(file.plot, Plot::Timeline { .. }),
            ..published
        };
        let known = self.sets.iter().position(|set| set.key == key);
        let set = match known {
            Some(set) => set,
            None => {
                let works = works(&key, file, folder, data)?;
                self.sets.push(WorkSet { key, works });
                self.sets.len() - 1
            }
        };
        Ok(Case { set, settings })
    }
}

/// The kinds of workload; generated jobs stand in for published ones that are not at hand.
fn sources(file: &ExperimentFile, data: &Data) -> Vec<Source> {
    if file.sweep.is_some() {
        return vec![Source::Sweep];
    }
    let mut sources = Vec::new();
    for source in &file.workloads {
        let source = data.at_hand(source);
        if !sources.contains(&source) {
            sources.push(source);
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
            AxisSetting::Scale => world.scale = value.map(|value| value as u32),
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
    policy_settings(table).map_err(|reason| match file.axis.as_ref().map(|axis| &axis.setting) {
        Some(AxisSetting::Policy(setting)) if reason.contains(&format!("unknown field `{setting}`")) => {
            ExperimentError::Axis { setting: setting.clone(), row: row.label.clone() }
        }
        Some(_) | None => ExperimentError::Policy { row: row.label.clone(), reason },
    })
}

fn works(key: &SetKey, file: &ExperimentFile, folder: &Path, data: &Data) -> Result<Vec<Work>, ExperimentError> {
    match (&key.source, &data.published) {
        (Source::File(path), _) => Ok(vec![given(key, &folder.join(path), file.seeds[0])?]),
        (Source::Typed(path), _) => {
            let paths = typed(&data.folder, path)?;
            paths.iter().zip(file.seeds.iter().cycle()).map(|(path, &seed)| given(key, path, seed)).collect()
        }
        (Source::Published, Some(published)) => {
            let folder = published.join(match key.requests {
                Requests::Tuned => "workloads",
                Requests::Realistic => "workloads-realistic",
            });
            let path = |number| folder.join(format!("workload-{number}.csv"));
            (1..=PUBLISHED)
                .zip(file.seeds.iter().cycle())
                .map(|(number, &seed)| given(key, &path(number), seed))
                .collect()
        }
        (Source::Generated | Source::Shipped, _) | (Source::Published, None) => {
            file.seeds.iter().map(|&seed| generated(key, seed, data)).collect()
        }
        (Source::Sweep, _) => {
            let sweep = |shape: &SweepShape| file.seeds.iter().map(|&seed| sweep(key, shape, seed, data)).collect();
            Ok(file.sweep.as_ref().map_or_else(Vec::new, sweep))
        }
    }
}

/// A cluster of the experiment's own, or a shape; as many times as large as the world.
fn cluster(folder: &Path, world: &WorldSettings, source: &Source) -> Result<ClusterSpec, ExperimentError> {
    let given = world.cluster.as_deref().unwrap_or(CLUSTER);
    let path = if given.ends_with(".toml") { folder.join(given) } else { PathBuf::from(given) };
    let cluster = ClusterSpec::read(&path.to_string_lossy()).map_err(ExperimentError::Cluster)?;
    let shipped = |name: String| {
        let known = SHIPPED_TYPES.iter().find(|(recorded, _)| *recorded == name);
        known.filter(|_| *source == Source::Shipped).map_or(name.clone(), |(_, shipped)| (*shipped).to_owned())
    };
    let group = |group: &NodeGroup| NodeGroup {
        count: group.count.saturating_mul(world.scale.unwrap_or(1)),
        gpu_type: group.gpu_type.clone().map(shipped),
        ..group.clone()
    };
    ClusterSpec::new(cluster.groups().iter().map(group).collect()).map_err(ExperimentError::Cluster)
}

/// The files of workloads that were published with measurements of several types: one, or all of a folder.
fn typed(data: &Path, path: &Path) -> Result<Vec<PathBuf>, ExperimentError> {
    let Ok(below) = path.strip_prefix("sia") else { return Ok(Vec::new()) };
    let found = data.join("sia/workloads").join(below);
    if !found.is_dir() {
        return Ok(vec![found.with_extension("csv")]);
    }
    let unreadable =
        |reason: std::io::Error| ExperimentError::Unreadable { path: found.clone(), reason: reason.to_string() };
    let entries = fs::read_dir(&found).map_err(unreadable)?;
    let mut files = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    if let Ok(files) = &mut files {
        files.retain(|path| path.extension().is_some_and(|extension| extension == "csv"));
        files.sort();
    }
    files.map_err(unreadable)
}

/// A workload as it is, or one of another load that is drawn from it.
fn given(key: &SetKey, path: &Path, seed: u64) -> Result<Work, ExperimentError> {
    let given = read_osdi21(path).and_then(|given| copies(given, key.copies)).map_err(ExperimentError::Workload)?;
    let label = given.name().to_owned();
    if key.load == 1.0 {
        return Ok(Work::Scenario(Scenario { label, seed: 0, seeded: Seeded::Nothing, workload: given }));
    }
    let workload = resample(&given, key.load, seed).map_err(ExperimentError::Workload)?;
    Ok(Work::Scenario(Scenario { label, seed, seeded: Seeded::Draws, workload }))
}

fn copies(workload: Workload, times: u32) -> Result<Workload, WorkloadError> {
    if times == 1 { Ok(workload) } else { repeat(&workload, times) }
}

fn generated(key: &SetKey, seed: u64, data: &Data) -> Result<Work, ExperimentError> {
    let settings = GeneratorSettings {
        jobs: key.jobs,
        load: key.load,
        seed,
        requested_replicas_max: key.gpus,
        requests: key.requests,
    };
    let workload = generate(&settings, data.applications(&key.source)).and_then(|made| copies(made, key.copies));
    let workload = workload.map_err(ExperimentError::Workload)?;
    let label = workload.name().to_owned();
    Ok(Work::Scenario(Scenario { label, seed, seeded: Seeded::Jobs, workload }))
}

/// Trials of one GPU and the baseline batch, unless the row says otherwise.
fn sweep(key: &SetKey, shape: &SweepShape, seed: u64, data: &Data) -> Work {
    let SweepShape { application, trials, keep_one_in, first_epochs } = *shape;
    let baseline = data.applications.get(application).limits().batch_size_baseline();
    let Trial { replicas, batch_size } = key.trial.unwrap_or(Trial { replicas: 1, batch_size: baseline });
    Work::Sweep(Sweep { application, trials, keep_one_in, first_epochs, replicas, batch_size, seed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_in_the_repository_can_be_run_without_recorded_data() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let data = Data::none();
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
