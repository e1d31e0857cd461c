//! The picture of a fit: measured against predicted throughput on the left, goodput on the right.

mod goodput;
mod throughput;

use plotters::prelude::*;

use super::report::FitReport;
use crate::measurements::Measurements;
use crate::plot::{DrawError, panel, printable, svg};

const SIZE: (u32, u32) = (2400, 1080);
const TITLE_HEIGHT: u32 = 100;
const TITLE_CHARS_MAX: usize = 80;

impl FitReport {
    /// Draws measured against predicted throughput, and goodput, as SVG text.
    pub fn plot(&self, measurements: &Measurements) -> Result<String, DrawError> {
        svg(SIZE, |canvas| {
            let (title, panels) = canvas.split_vertically(TITLE_HEIGHT);
            let style = panel::bold_text(40, panel::INK);
            title.draw(&Text::new(title_text(&self.settings.files), (panel::LEFT, 40), style))?;
            let (left, right) = panels.split_horizontally(SIZE.0 / 2);
            throughput::draw(&left, self, measurements)?;
            goodput::draw(&right, self)
        })
    }
}

/// The files by the last two parts of their paths, where that fits.
fn title_text(files: &[String]) -> String {
    let short = |file: &String| {
        let parts: Vec<&str> = file.split('/').collect();
        parts[parts.len().saturating_sub(2)..].join("/")
    };
    let names = files.iter().map(short).collect::<Vec<_>>().join(" + ");
    let shown = if names.chars().count() <= TITLE_CHARS_MAX { names } else { format!("{} files", files.len()) };
    printable(&shown)
}
