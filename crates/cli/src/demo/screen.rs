use std::io::{self, IsTerminal, Write};

use clap::builder::styling::{AnsiColor, Style};
use pollux_job::Phase;

use super::recording::{Recording, Track};
use super::scenario::SLOTS;

/// Colours of jobs, by number.
const COLOURS: [AnsiColor; 6] =
    [AnsiColor::Blue, AnsiColor::Green, AnsiColor::Yellow, AnsiColor::Magenta, AnsiColor::Cyan, AnsiColor::Red];

/// The live view on stderr: drawn anew on a terminal, a line for each change elsewhere.
pub(super) struct Screen {
    is_terminal: bool,
    lines: usize,
    told: Vec<String>,
}

impl Screen {
    pub(super) fn open() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), lines: 0, told: Vec::new() }
    }

    pub(super) fn draw(&mut self, at_s: f64, pollux: &Recording, equal: &Recording) {
        let text = if self.is_terminal { self.redrawn(at_s, pollux, equal) } else { self.changes(at_s, pollux) };
        // A view that cannot be shown must not stop the demo.
        let _ = anstream::stderr().write_all(text.as_bytes());
    }

    fn redrawn(&mut self, at_s: f64, pollux: &Recording, equal: &Recording) -> String {
        let bold = Style::new().bold();
        let mut lines = vec![format!(
            "{bold}pollux demo{bold:#} {at_s:>3.0} s: {} of {SLOTS} GPUs, goodput {:.0}; equal shares: {:.0}, {} jobs done",
            pollux.replicas(),
            pollux.goodput(),
            equal.goodput(),
            equal.ended(),
        )];
        lines.extend(pollux.tracks().map(job_line));
        let up = if self.lines == 0 { String::new() } else { format!("\x1b[{}A", self.lines) };
        self.lines = lines.len();
        // Lines are cut where a narrow terminal would break them, or the next frame would miss its place.
        let body: String = lines.iter().map(|line| format!("\x1b[K{line}\n")).collect();
        format!("{up}\x1b[?7l{body}\x1b[?7h")
    }

    /// A line for each job whose phase, GPUs or batch are others than before.
    fn changes(&mut self, at_s: f64, pollux: &Recording) -> String {
        let mut text = String::new();
        for (idx, track) in pollux.tracks().enumerate() {
            let job = &track.job;
            let batch = job.batch_size.map_or_else(String::new, |batch| format!(", batch {batch}"));
            let gpus = if job.replicas == 0 { String::new() } else { format!(", GPUs {}", job.replicas) };
            let line = format!("{}: {}{gpus}{batch}", job.name, word(job.phase));
            if self.told.get(idx) != Some(&line) {
                text += &format!("{at_s:>5.1} s  {line}\n");
                self.told.resize(self.told.len().max(idx + 1), String::new());
                self.told[idx] = line;
            }
        }
        text
    }
}

fn job_line(track: &Track) -> String {
    const BAR: usize = 20;
    let job = &track.job;
    let colour = COLOURS[job.id as usize % COLOURS.len()].on_default();
    let gpus = "■".repeat(job.replicas as usize);
    let progress = if job.phase == Phase::Succeeded { 1.0 } else { job.progress.unwrap_or(0.0).clamp(0.0, 1.0) };
    let filled = (progress * BAR as f64).round() as usize;
    let bar = "█".repeat(filled) + &"░".repeat(BAR - filled);
    let batch = job.batch_size.map_or_else(String::new, |batch| format!("batch {batch}"));
    let goodput = job.goodput.map_or_else(String::new, |goodput| format!("{goodput:.0} samples/s"));
    format!(
        "  {:<12} {:<9} {colour}{gpus:<8}{colour:#} {batch:<11} {goodput:>14}  {colour}{bar}{colour:#} {:>3.0}%",
        job.name,
        word(job.phase),
        progress * 100.0
    )
}

const fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Queued => "waits",
        Phase::Starting => "starts",
        Phase::Running => "trains",
        Phase::Resizing => "resizes",
        Phase::Paused => "paused",
        Phase::Succeeded => "done",
        Phase::Failed => "failed",
        Phase::Cancelled => "cancelled",
        Phase::Unknown => "unknown",
    }
}
