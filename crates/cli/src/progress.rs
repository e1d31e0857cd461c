//! A line on stderr that says how far a long reading has come.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::output::one_line;

/// Shorter work needs no talk.
const QUIET_TIME: Duration = Duration::from_secs(1);
const REDRAW_TIME: Duration = Duration::from_millis(200);

/// Progress of one piece of work; it only shows on a terminal and disappears at the end.
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
