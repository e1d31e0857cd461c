use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::ExperimentError;
use super::cases::{CLUSTER, Cases, world};
use super::data::Data;
use super::file::{ExperimentFile, Row, Source, Trial, WorldSettings};
use super::grid::Grid;

/// An experiment's table, and everything it depends on.
#[derive(Clone, Debug, Serialize)]
pub struct ExperimentReport {
    /// That of its folder.
    pub name: String,
    /// In a few words.
    pub title: String,
    /// In one sentence.
    pub question: String,
    /// What the paper found, and how to read the table.
    pub paper: String,
    /// What was run, and how.
    pub facts: Vec<Fact>,
    /// What came out.
    pub table: Grid,
    /// The folder that table and plot were saved in.
    #[serde(skip)]
    pub results: PathBuf,
    /// What the reader should know about it.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// Something the table depends on.
#[derive(Clone, Debug, Serialize)]
pub struct Fact {
    /// What it is about.
    pub name: &'static str,
    /// In words.
    pub value: String,
}

/// What a report is made of.
pub(super) struct Parts<'a> {
    pub(super) folder: &'a Path,
    pub(super) results: &'a Path,
    pub(super) file: &'a ExperimentFile,
    pub(super) data: &'a Data,
    pub(super) cases: &'a Cases,
    pub(super) commit: String,
    pub(super) table: Grid,
}

impl ExperimentReport {
    pub(super) fn new(parts: Parts<'_>) -> Self {
        let name = folder_name(parts.folder);
        Self {
            facts: facts(&parts),
            notes: notes(&parts),
            name,
            title: parts.file.title.clone(),
            question: parts.file.question.clone(),
            paper: parts.file.paper.trim().to_owned(),
            table: parts.table,
            results: parts.results.to_owned(),
        }
    }

    /// Saves the table for people and for programs, and the plot.
    pub(super) fn save(&self, svg: &str) -> Result<(), ExperimentError> {
        let files = [("csv", self.table.csv()), ("md", self.markdown()), ("svg", svg.to_owned())];
        for (extension, text) in files {
            let path = self.results.join(format!("{}.{extension}", self.name));
            fs::write(&path, text).map_err(|reason| ExperimentError::Unwritable { path, reason })?;
        }
        Ok(())
    }

    fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n{}\n\n| | |\n| --- | --- |\n", self.title, self.question);
        for Fact { name, value } in &self.facts {
            text += &format!("| {name} | {} |\n", value.replace('|', "\\|"));
        }
        text += &format!("\n{}", self.table.markdown());
        if !self.paper.is_empty() {
            text += &format!("\n{}\n", self.paper);
        }
        text + &format!("\n![{}]({}.svg)\n", self.title, self.name)
    }
}

fn notes(parts: &Parts<'_>) -> Vec<String> {
    let unrecorded = "no recorded data (POLLUX_DATA, data): generated jobs on the profiles that ship".to_owned();
    (!parts.data.has_all(parts.file)).then_some(unrecorded).into_iter().collect()
}

/// The last part of a path, which is what the experiment is called.
pub(super) fn folder_name(folder: &Path) -> String {
    folder.file_name().map_or_else(|| "experiment".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn facts(parts: &Parts<'_>) -> Vec<Fact> {
    let Parts { folder, file, data, cases, .. } = parts;
    let near =
        folder.parent().and_then(Path::file_name).map_or_else(String::new, |name| format!("{}/", name.display()));
    let mut facts = vec![
        Fact { name: "command", value: format!("pollux experiment {near}{}", folder_name(folder)) },
        Fact { name: "physics", value: physics(parts) },
        Fact { name: "workloads", value: workloads_text(cases) },
        Fact { name: "settings", value: world_text(&world(file, &file.rows[0], 0), file) },
        Fact { name: "program", value: format!("pollux {}", env!("CARGO_PKG_VERSION")) },
        Fact { name: "commit", value: parts.commit.clone() },
    ];
    if !data.has_all(file) {
        let value = "left out: they are of recorded physics and published workloads".to_owned();
        facts.push(Fact { name: "expected figures", value });
    }
    let mut rows: Vec<String> = file.rows.iter().filter_map(row_text).collect();
    // Rows that differ in their requests alone say the same.
    rows.dedup();
    if !rows.is_empty() {
        facts.insert(4, Fact { name: "rows", value: rows.join("; ") });
    }
    facts
}

/// The physics of all kinds of workload, each once.
fn physics(parts: &Parts<'_>) -> String {
    let mut names: Vec<&str> = parts.cases.sources.iter().map(|source| parts.data.physics(source)).collect();
    names.dedup();
    names.join("; ")
}

/// What the kinds of workload are called, with the seeds of those that were drawn.
fn workloads_text(cases: &Cases) -> String {
    let text = |source: &Source| {
        let workloads = cases.workloads(source);
        let jobs: Vec<usize> = workloads.iter().map(|&(_, jobs)| jobs).collect();
        let (least, most) = (jobs.iter().min().copied().unwrap_or(0), jobs.iter().max().copied().unwrap_or(0));
        let jobs = if most == 1 {
            "1 job".to_owned()
        } else if least == most {
            format!("{most} jobs")
        } else {
            format!("{least} to {most} jobs")
        };
        let mut names: Vec<String> = workloads.into_iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        let kind = match source {
            Source::Published => "published: ".to_owned(),
            Source::Generated => "generated, named by seed: ".to_owned(),
            Source::Shipped => "generated on the profiles that ship, named by seed: ".to_owned(),
            Source::Typed(_) => format!("published, {}: ", source.name()),
            Source::File(_) => "made by hand: ".to_owned(),
            Source::Sweep => "sweeps, named by seed: ".to_owned(),
        };
        let each = if names.len() > 1 { " each" } else { "" };
        format!("{kind}{} ({jobs}{each})", names.join(", "))
    };
    cases.sources.iter().map(text).collect::<Vec<_>>().join("; ")
}

fn world_text(world: &WorldSettings, file: &ExperimentFile) -> String {
    let axis = file.axis.as_ref().map(|axis| axis.setting.name());
    let told = |name: &str, text: String| if axis == Some(name) { format!("{name} as listed") } else { text };
    let epochs = if world.declare_epochs.unwrap_or(true) { "epochs declared" } else { "epochs not declared" };
    let mut texts = vec![
        format!("cluster {}", world.cluster.as_deref().unwrap_or(CLUSTER)),
        told("interval_s", format!("rounds of {} s", world.interval_s.unwrap_or(60.0))),
        told("restart_delay_s", format!("{} s per restart", world.restart_delay_s.unwrap_or(30.0))),
        epochs.to_owned(),
    ];
    texts.extend(world.resize_delay_s.map(|delay_s| format!("{delay_s} s per resize in place")));
    let interference = told("interference", format!("interference {}", world.interference.unwrap_or(0.0)));
    texts.extend((world.interference.unwrap_or(0.0) > 0.0 || axis == Some("interference")).then_some(interference));
    texts.join(", ")
}

/// Settings of a row's own.
fn row_text(row: &Row) -> Option<String> {
    let policy = row.policy.0.iter().filter(|(name, _)| *name != "policy");
    // What a table cannot say is not set either.
    let world = toml::Table::try_from(&row.settings).unwrap_or_default();
    let mut settings: Vec<String> = policy.chain(&world).map(|(name, value)| format!("{name} = {value}")).collect();
    if let Some(Trial { replicas, batch_size }) = row.trial {
        settings.push(format!("GPUs of a trial = {replicas}, its batch = {batch_size}"));
    }
    (!settings.is_empty()).then(|| format!("{}: {}", row.label, settings.join(", ")))
}
