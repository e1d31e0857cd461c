//! What an `experiment.toml` may say. `experiments/README.md` explains it to those who write one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pollux_sim::{ApplicationName, Autoscale, Requests, TuneFor};
use serde::{Deserialize, Serialize};
use toml::Value;

use super::ExperimentError;
use super::measure::Measure;
use crate::sim::workloads::repeated;

/// An experiment as its file tells it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExperimentFile {
    pub(super) title: String,
    /// In one sentence.
    pub(super) question: String,
    /// What the paper found, and how to read the table.
    #[serde(default)]
    pub(super) paper: String,
    #[serde(default = "published")]
    pub(super) workloads: Vec<Source>,
    /// A search for hyper-parameters instead of workloads.
    pub(super) sweep: Option<SweepShape>,
    /// Of generated workloads and sweeps.
    #[serde(default = "four_seeds")]
    pub(super) seeds: Vec<u64>,
    pub(super) measures: Vec<Measure>,
    /// How far from an expected figure is too far, as a share of it.
    #[serde(default = "tenth")]
    pub(super) tolerance: f64,
    #[serde(default)]
    pub(super) settings: WorldSettings,
    pub(super) axis: Option<Axis>,
    /// The row that others are compared with, as ratios of the first measure.
    pub(super) reference: Option<String>,
    pub(super) plot: Plot,
    pub(super) rows: Vec<Row>,
}

/// Where jobs come from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(super) enum Source {
    /// The four published workloads; generated ones where they are not at hand.
    Published,
    /// The project's own generator.
    Generated,
    /// The project's own generator, on the profiles that ship, whatever data is at hand.
    Shipped,
    /// Workloads that were published with measurements of several types of GPU, as a path below the data: a folder of them,
    /// or one without its ending. Jobs made up on the profiles that ship where they are not at hand.
    Typed(PathBuf),
    /// A file beside the experiment's.
    File(PathBuf),
    /// The trials of the experiment's sweep.
    Sweep,
}

/// A search for hyper-parameters by successive halving; see [`pollux_sim::Sweep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SweepShape {
    pub(super) application: ApplicationName,
    pub(super) trials: u32,
    pub(super) keep_one_in: u32,
    pub(super) first_epochs: u32,
}

/// What a user gives each trial; policies that choose for themselves ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Trial {
    pub(super) replicas: u32,
    pub(super) batch_size: u32,
}

/// The world that jobs run in; what is not said is as published.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorldSettings {
    /// A shape, or a file of the experiment's folder.
    pub(super) cluster: Option<String>,
    pub(super) interval_s: Option<f64>,
    pub(super) restart_delay_s: Option<f64>,
    /// Of jobs that go on where they were suspended.
    pub(super) resume_delay_s: Option<f64>,
    /// Of jobs that are resized in place.
    pub(super) resize_delay_s: Option<f64>,
    pub(super) interference: Option<f64>,
    pub(super) declare_epochs: Option<bool>,
    /// How nodes come and go.
    pub(super) autoscale: Option<Autoscale>,
    pub(super) tune_for: Option<TuneFor>,
    /// Multiplies the jobs.
    pub(super) load: Option<f64>,
    /// Jobs to generate at load 1.
    pub(super) jobs: Option<u32>,
    /// Multiplies nodes and jobs.
    pub(super) scale: Option<u32>,
}

/// A setting that takes several values.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Axis {
    pub(super) setting: AxisSetting,
    pub(super) values: Vec<f64>,
    /// The value that others are compared with, as ratios of the first measure.
    pub(super) reference: Option<f64>,
}

/// What an axis sets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub(super) enum AxisSetting {
    Load,
    Scale,
    Interval,
    RestartDelay,
    Interference,
    /// A setting of every row's policy.
    Policy(String),
}

/// How results are drawn.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Plot {
    /// A bar for each row, a panel for each measure.
    Bars { measures: Vec<Measure> },
    /// A line for each row over the axis, a panel for each measure.
    Lines { measures: Vec<Measure> },
    /// The share of jobs up to each finish-time fairness.
    Fairness {},
    /// One job of the first kind of workload over time.
    Timeline {
        job: String,
        panels: Vec<Panel>,
        #[serde(default)]
        phases: Vec<Phase>,
    },
}

/// What is drawn over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Panel {
    /// GPUs of the job.
    Gpus,
    /// Its total batch.
    BatchSize,
    /// Its statistical efficiency.
    Efficiency,
    /// Nodes of the cluster.
    Nodes,
    /// Node-hours paid so far.
    Cost,
}

/// A part of a timeline that is told apart from the next.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Phase {
    pub(super) label: String,
    pub(super) until_h: f64,
}

/// A policy with its settings, and what is expected of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) label: String,
    pub(super) policy: PolicyChoice,
    #[serde(default)]
    pub(super) requests: Requests,
    pub(super) trial: Option<Trial>,
    #[serde(default)]
    pub(super) settings: WorldSettings,
    #[serde(default)]
    pub(super) expected: BTreeMap<Measure, Figures>,
}

/// A policy by its name, or a table with its name and settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct PolicyChoice(pub(super) toml::Table);

/// One figure, one for each value of the axis, or one for kinds of workload by their names.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a number, a list of one for each value of the axis, or one by workloads")]
pub(super) enum Figures {
    One(f64),
    Along(Vec<f64>),
    Of(BTreeMap<String, f64>),
}

fn published() -> Vec<Source> {
    vec![Source::Published]
}

fn four_seeds() -> Vec<u64> {
    (0..4).collect()
}

const fn tenth() -> f64 {
    0.1
}

impl TryFrom<String> for Source {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "published" => Ok(Self::Published),
            "generated" => Ok(Self::Generated),
            "shipped" => Ok(Self::Shipped),
            typed if typed.starts_with("sia/") && !typed.contains("..") => Ok(Self::Typed(PathBuf::from(text))),
            file if file.ends_with(".csv") => Ok(Self::File(PathBuf::from(text))),
            _ => Err(format!(
                "workloads {text:?}: expected published, generated, shipped, sia/ with workloads there, or a file that ends in .csv"
            )),
        }
    }
}

impl Source {
    /// What tables and files call it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Published => "published".to_owned(),
            Self::Generated => "generated".to_owned(),
            Self::Shipped => "shipped".to_owned(),
            Self::Typed(path) => path.display().to_string(),
            Self::File(path) => path.with_extension("").display().to_string(),
            Self::Sweep => "sweep".to_owned(),
        }
    }
}

impl From<String> for AxisSetting {
    fn from(name: String) -> Self {
        match name.as_str() {
            "load" => Self::Load,
            "scale" => Self::Scale,
            "interval_s" => Self::Interval,
            "restart_delay_s" => Self::RestartDelay,
            "interference" => Self::Interference,
            _ => Self::Policy(name),
        }
    }
}

impl AxisSetting {
    /// As it is written, with its unit last.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Load => "load",
            Self::Scale => "scale",
            Self::Interval => "interval_s",
            Self::RestartDelay => "restart_delay_s",
            Self::Interference => "interference",
            Self::Policy(name) => name,
        }
    }

    /// What people read at an axis.
    pub(super) fn heading(&self) -> String {
        match self {
            Self::Load => "load".to_owned(),
            Self::Scale => "scale (times the nodes and the jobs)".to_owned(),
            Self::Interval => "scheduling interval (s)".to_owned(),
            Self::RestartDelay => "restart delay (s)".to_owned(),
            Self::Interference => "interference (share of speed lost)".to_owned(),
            Self::Policy(name) => name.replace('_', " "),
        }
    }
}

impl TryFrom<Value> for PolicyChoice {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value {
            Value::String(_) => Ok(Self(toml::Table::from_iter([("policy".to_owned(), value)]))),
            Value::Table(table) => Ok(Self(table)),
            other => Err(format!("policy {other}: expected a name, or a table with policy and its settings")),
        }
    }
}

impl Figures {
    /// The figure at a place of the axis, of a kind of workload.
    pub(super) fn at(&self, point: usize, source: &str) -> Option<f64> {
        match self {
            Self::One(figure) => Some(*figure),
            Self::Along(figures) => figures.get(point).copied(),
            Self::Of(figures) => figures.get(source).copied(),
        }
    }
}

impl WorldSettings {
    /// These settings where they say something, else those below.
    pub(super) fn over(&self, below: &Self) -> Self {
        Self {
            cluster: self.cluster.clone().or_else(|| below.cluster.clone()),
            interval_s: self.interval_s.or(below.interval_s),
            restart_delay_s: self.restart_delay_s.or(below.restart_delay_s),
            resume_delay_s: self.resume_delay_s.or(below.resume_delay_s),
            resize_delay_s: self.resize_delay_s.or(below.resize_delay_s),
            interference: self.interference.or(below.interference),
            declare_epochs: self.declare_epochs.or(below.declare_epochs),
            autoscale: self.autoscale.or(below.autoscale),
            tune_for: self.tune_for.or(below.tune_for),
            load: self.load.or(below.load),
            jobs: self.jobs.or(below.jobs),
            scale: self.scale.or(below.scale),
        }
    }
}

impl ExperimentFile {
    /// Reads the `experiment.toml` of a folder and refuses what makes no sense.
    pub(super) fn read(folder: &Path) -> Result<Self, ExperimentError> {
        let path = folder.join("experiment.toml");
        let text = fs::read_to_string(&path)
            .map_err(|reason| ExperimentError::Unreadable { path: path.clone(), reason: reason.to_string() })?;
        let file: Self = toml::from_str(&text).map_err(|error| ExperimentError::Line {
            path: path.clone(),
            line: 1 + error.span().map_or(0, |span| text[..span.start].matches('\n').count()),
            reason: error.message().replace('\n', "; "),
        })?;
        file.check().map_err(|reason| ExperimentError::Sense { path, reason })?;
        Ok(file)
    }

    /// The values of the axis; a single place without one.
    pub(super) fn points(&self) -> usize {
        self.axis.as_ref().map_or(1, |axis| axis.values.len())
    }

    fn check(&self) -> Result<(), String> {
        for (name, count) in [
            ("rows", self.rows.len()),
            ("measures", self.measures.len()),
            ("workloads", self.workloads.len()),
            ("seeds", self.seeds.len()),
        ] {
            if count == 0 {
                return Err(format!("no {name}; expected one or more"));
            }
        }
        if let Some(seed) = repeated(&self.seeds) {
            return Err(format!("seed {seed} is given more than once; expected once"));
        }
        if !(0.0..=1.0).contains(&self.tolerance) {
            return Err(format!("tolerance {}; expected a share from 0 to 1", self.tolerance));
        }
        let names: Vec<_> = self.rows.iter().map(|row| (&row.label, row.requests)).collect();
        if let Some((label, requests)) = repeated(&names) {
            let requests = requests.name();
            return Err(format!("row {label:?} with {requests} requests is there twice; expected rows that differ"));
        }
        self.axis.as_ref().map_or(Ok(()), Axis::check)?;
        let scales = self.rows.iter().map(|row| &row.settings).chain([&self.settings]).filter_map(|world| world.scale);
        if let Some(scale) = scales.into_iter().find(|scale| !(1..=10_000).contains(scale)) {
            return Err(format!("scale {scale}; expected 1 to 10000"));
        }
        if let Some(reference) = &self.reference {
            if !self.rows.iter().any(|row| row.label == *reference) {
                return Err(format!("reference {reference:?}; expected the label of a row"));
            }
            if self.axis.as_ref().is_some_and(|axis| axis.reference.is_some()) {
                return Err("a reference beside that of the axis; expected one of them".to_owned());
            }
        }
        self.rows.iter().try_for_each(|row| self.check_row(row))?;
        self.check_plot()
    }

    fn check_row(&self, row: &Row) -> Result<(), String> {
        let label = &row.label;
        if self.sweep.is_none() && row.trial.is_some() {
            return Err(format!("row {label:?} has a trial; accepted where the experiment has a [sweep]"));
        }
        let file = self.workloads.iter().any(|source| matches!(source, Source::File(_) | Source::Typed(_)));
        if file && row.requests == Requests::Realistic {
            return Err(format!("row {label:?}: realistic requests; accepted with published or generated workloads"));
        }
        for (measure, figures) in &row.expected {
            let name = measure.name();
            if !self.measures.contains(measure) {
                return Err(format!("row {label:?} expects {name}; expected the measures of the experiment"));
            }
            if let Figures::Along(figures) = figures
                && figures.len() != self.points()
            {
                let (given, accepted) = (figures.len(), self.points());
                return Err(format!("row {label:?}: {given} expected figures of {name}; expected {accepted}"));
            }
            if let Figures::Of(figures) = figures
                && let Some(unknown) =
                    figures.keys().find(|name| !self.workloads.iter().any(|own| own.name() == **name))
            {
                let accepted = self.workloads.iter().map(Source::name).collect::<Vec<_>>().join(", ");
                return Err(format!("row {label:?}: {name} of {unknown:?}; expected {accepted}"));
            }
        }
        Ok(())
    }

    /// A sweep has no completion times of jobs and no jobs to follow.
    fn check_sweep(&self) -> Result<(), String> {
        let shown = match &self.plot {
            Plot::Bars { measures } | Plot::Lines { measures } => measures,
            Plot::Fairness {} | Plot::Timeline { .. } => {
                return Err("a plot of jobs with a sweep; expected bars and lines".to_owned());
            }
        };
        match self.measures.iter().chain(shown).find(|measure| !measure.is_of_sweeps()) {
            Some(measure) => Err(format!("{} of a sweep; expected {}", measure.name(), Measure::of_sweeps())),
            None => Ok(()),
        }
    }

    fn check_plot(&self) -> Result<(), String> {
        if self.sweep.is_some() {
            self.check_sweep()?;
        }
        match &self.plot {
            Plot::Bars { .. } if self.axis.is_some() => {
                Err("a plot of bars with an axis; expected lines, or rows instead of an axis".to_owned())
            }
            Plot::Lines { .. } if self.axis.is_none() => {
                Err("a plot of lines without an axis; expected bars, or an [axis]".to_owned())
            }
            Plot::Bars { measures } | Plot::Lines { measures } if measures.is_empty() => {
                Err("a plot without measures; expected one or more".to_owned())
            }
            Plot::Timeline { panels, .. } if panels.is_empty() => {
                Err("a plot without panels; expected one or more".to_owned())
            }
            Plot::Timeline { phases, .. } => {
                let ends: Vec<f64> = phases.iter().map(|phase| phase.until_h).collect();
                let ordered = ends.iter().all(|end| *end > 0.0) && ends.windows(2).all(|pair| pair[0] < pair[1]);
                if ordered { Ok(()) } else { Err("phases out of order; expected rising until_h".to_owned()) }
            }
            Plot::Bars { .. } | Plot::Lines { .. } | Plot::Fairness {} => Ok(()),
        }
    }
}

impl Axis {
    fn check(&self) -> Result<(), String> {
        if self.values.is_empty() || self.values.iter().any(|value| !value.is_finite()) {
            return Err(format!("axis {} without finite values; expected one or more", self.setting.name()));
        }
        if let Some(value) = repeated(&self.values) {
            return Err(format!("axis value {value} is given more than once; expected once"));
        }
        if self.setting == AxisSetting::Scale
            && let Some(value) = self.values.iter().find(|value| !(1.0..=1e4).contains(*value) || value.fract() != 0.0)
        {
            return Err(format!("axis scale {value}; expected whole numbers from 1 to 10000"));
        }
        match self.reference {
            Some(value) if !self.values.contains(&value) => {
                Err(format!("axis reference {value}; expected one of its values"))
            }
            Some(_) | None => Ok(()),
        }
    }
}
