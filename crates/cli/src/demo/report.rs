use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;

use super::recording::{Recording, Track, mean};
use crate::table::{Align, Cell, Table};

const PARTS: usize = 24;

/// How the demo went.
#[derive(Debug, Serialize)]
pub(crate) struct DemoReport {
    jobs: Vec<JobReport>,
    pollux: ClusterReport,
    equal_shares: ClusterReport,
    /// Seconds that trainings stood still for each change of their groups, the shortest first.
    pauses_s: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct JobReport {
    name: String,
    /// None for a job that was not done in time.
    completion_s: Option<f64>,
    gpus_over_time: Vec<u32>,
    batch_sizes: Vec<u64>,
    resizes: u32,
    mean_goodput: f64,
    equal_shares_completion_s: Option<f64>,
    equal_shares_mean_goodput: f64,
}

#[derive(Debug, Serialize)]
struct ClusterReport {
    mean_completion_s: Option<f64>,
    makespan_s: Option<f64>,
}

impl DemoReport {
    pub(super) fn new(pollux: &Recording, equal: &Recording, mut pauses_s: Vec<f64>) -> Self {
        pauses_s.sort_by(f64::total_cmp);
        let job = |(ours, theirs): (&Track, &Track)| JobReport {
            name: ours.job.name.clone(),
            completion_s: ours.completion_s(),
            gpus_over_time: ours.replicas_over_time(PARTS),
            batch_sizes: ours.batches(),
            resizes: ours.job.restarts,
            mean_goodput: ours.mean_goodput(),
            equal_shares_completion_s: theirs.completion_s(),
            equal_shares_mean_goodput: theirs.mean_goodput(),
        };
        let jobs = pollux.tracks().zip(equal.tracks()).map(job).collect();
        Self { jobs, pollux: ClusterReport::new(pollux), equal_shares: ClusterReport::new(equal), pauses_s }
    }

    /// The summary for people.
    pub(crate) fn write_text(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let (bold, dim) = (Style::new().bold(), Style::new().dimmed());
        let mut table = Table::with_headings(&[
            ("job", Align::Left),
            ("time", Align::Right),
            ("GPUs over its time", Align::Left),
            ("batch", Align::Left),
            ("goodput", Align::Right),
            ("equal shares", Align::Right),
            ("goodput", Align::Right),
            ("ratio", Align::Right),
        ]);
        for job in &self.jobs {
            table.push(job.cells());
        }
        writeln!(out, "\n{bold}the same six trainings on 8 slots, twice, for real and at the same time{bold:#}\n")?;
        table.write("  ", out)?;
        writeln!(out)?;
        let mut means = Table::without_headings(&[Align::Left, Align::Right, Align::Right, Align::Right]);
        means.push(["", "pollux", "equal shares", "ratio"].map(|text| Cell::styled(text, bold)).into());
        let (ours, theirs) = (&self.pollux, &self.equal_shares);
        means.push(comparison("average completion time", ours.mean_completion_s, theirs.mean_completion_s));
        means.push(comparison("all done after", ours.makespan_s, theirs.makespan_s));
        means.write("  ", out)?;
        if let (Some(median), Some(longest)) = (self.pauses_s.get(self.pauses_s.len() / 2), self.pauses_s.last()) {
            let (median, longest) = (median * 1e3, longest * 1e3);
            let changes = self.pauses_s.len();
            writeln!(
                out,
                "  {changes} resizes in place: training paused for {median:.0} ms (median), {longest:.0} ms at most"
            )?;
        }
        writeln!(
            out,
            "\n  {dim}equal shares: 2 GPUs for every job, the batch its user chose, first come first served.\n  \
             Goodput is samples/s that count in full, on average from submission to end. Steps are paced like a\n  \
             throughput model says; gradients, noise, batches and resizes are real.{dim:#}"
        )
    }
}

impl JobReport {
    fn cells(&self) -> Vec<Cell> {
        let gpus: String = self.gpus_over_time.iter().map(|&gpus| if gpus == 0 { '·' } else { digit(gpus) }).collect();
        let batches = match &self.batch_sizes[..] {
            [] => "-".to_owned(),
            [first, .., last] => {
                let largest = self.batch_sizes.iter().max().copied().unwrap_or(0);
                if largest > *last {
                    format!("{first} → {largest} → {last}")
                } else {
                    format!("{first} → {last}")
                }
            }
            [only] => only.to_string(),
        };
        vec![
            Cell::plain(&self.name),
            Cell::plain(seconds(self.completion_s)),
            Cell::styled(gpus, AnsiColor::Cyan.on_default()),
            Cell::plain(batches),
            Cell::plain(format!("{:.0}", self.mean_goodput)),
            Cell::plain(seconds(self.equal_shares_completion_s)),
            Cell::plain(format!("{:.0}", self.equal_shares_mean_goodput)),
            ratio(self.completion_s, self.equal_shares_completion_s),
        ]
    }
}

impl ClusterReport {
    fn new(recording: &Recording) -> Self {
        let times: Option<Vec<f64>> = recording.tracks().map(Track::completion_s).collect();
        let times = times.filter(|times| !times.is_empty());
        let jobs = || recording.tracks().map(|track| &track.job);
        let began = jobs().map(|job| job.submitted_ms).min();
        let ended = jobs().map(|job| job.ended_ms).max().flatten();
        Self {
            mean_completion_s: times.as_ref().map(|times| mean(times.iter().copied())),
            makespan_s: times.and(began).zip(ended).map(|(from, to)| to.saturating_sub(from) as f64 / 1000.0),
        }
    }
}

fn comparison(what: &str, ours: Option<f64>, theirs: Option<f64>) -> Vec<Cell> {
    vec![Cell::plain(what), Cell::plain(seconds(ours)), Cell::plain(seconds(theirs)), ratio(ours, theirs)]
}

fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "not done".to_owned(), |seconds| format!("{seconds:.0} s"))
}

/// Green is better, yellow worse.
fn ratio(ours: Option<f64>, theirs: Option<f64>) -> Cell {
    match ours.zip(theirs).map(|(ours, theirs)| ours / theirs) {
        Some(ratio) if ratio <= 1.0 => Cell::styled(format!("{ratio:.2}"), AnsiColor::Green.on_default()),
        Some(ratio) => Cell::styled(format!("{ratio:.2}"), AnsiColor::Yellow.on_default()),
        None => Cell::plain("-"),
    }
}

fn digit(gpus: u32) -> char {
    char::from_digit(gpus, 36).unwrap_or('+')
}
