//! What stderr shows of how far a long piece of work is.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::one_line;

/// Shorter work needs no talk.
const QUIET_TIME: Duration = Duration::from_secs(1);
const REDRAW_TIME: Duration = Duration::from_millis(200);

/// Progress of a reading; it only shows on a terminal and disappears at the end.
pub(crate) struct Progress {
    is_terminal: bool,
    next: Instant,
    drawn: bool,
}

impl Progress {
    /// Starts counting the quiet time.
    pub(crate) fn start() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), next: Instant::now() + QUIET_TIME, drawn: false }
    }

    /// Shows how many rows were read and where they come from.
    pub(crate) fn rows(&mut self, rows: u64, file: &str) {
        let now = Instant::now();
        if self.is_terminal && now >= self.next {
            self.draw(&format!("reading {}: {:.1} million rows", one_line(file), rows as f64 / 1e6));
            self.next = now + REDRAW_TIME;
            self.drawn = true;
        }
    }

    fn draw(&self, text: &str) {
        // Progress that cannot be shown must not stop the work.
        let _ = write!(io::stderr(), "\r\x1b[K{text}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn {
            self.draw("");
        }
    }
}

/// How many jobs of simulations are finished; it only shows on a terminal and disappears at the end.
pub(crate) struct JobsBar {
    bar: ProgressBar,
}

impl JobsBar {
    /// Nothing shows before the first job is finished.
    pub(crate) fn start() -> Self {
        let template = "simulating {bar:30.cyan/blue} {pos}/{len} jobs {elapsed}, {eta} left";
        let style = ProgressStyle::with_template(template).expect("the template is ours").progress_chars("━╸─");
        Self { bar: ProgressBar::no_length().with_style(style) }
    }

    /// Shows how far it is.
    pub(crate) fn show(&self, progress: pollux_lab::Progress) {
        self.bar.set_length(progress.jobs as u64);
        self.bar.set_position(progress.finished as u64);
    }
}

impl Drop for JobsBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
