//! The picture of a fit: measured against predicted throughput on the left, goodput on the right.

mod axis;
mod goodput;
mod panel;
mod throughput;

use anyhow::Context;
use plotters::prelude::*;
use pollux_model::ThroughputModel;

use super::report::Report;
use crate::measurements::Measurements;

/// The backend rounds to whole units, so that curves need units smaller than a pixel.
const UNITS_PER_PIXEL: u32 = 2;
const SIZE: (u32, u32) = (2400, 1080);
const TITLE_HEIGHT: u32 = 100;
const TITLE_CHARS_MAX: usize = 80;

/// Draws a report as SVG text.
pub(super) fn draw(report: &Report, measurements: &Measurements, model: &ThroughputModel) -> anyhow::Result<String> {
    let mut svg = String::new();
    draw_on(&mut svg, report, measurements, model).context("cannot draw the plot")?;
    let size = |per_pixel: u32| format!(r#"width="{}" height="{}""#, SIZE.0 / per_pixel, SIZE.1 / per_pixel);
    Ok(svg.replacen(&size(1), &size(UNITS_PER_PIXEL), 1))
}

fn draw_on(
    svg: &mut String,
    report: &Report,
    measurements: &Measurements,
    model: &ThroughputModel,
) -> anyhow::Result<()> {
    let canvas = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    canvas.fill(&WHITE)?;
    let (title, panels) = canvas.split_vertically(TITLE_HEIGHT);
    title.draw(&Text::new(title_text(&report.settings.files), (panel::LEFT, 40), panel::bold_text(40, panel::INK)))?;
    let (left, right) = panels.split_horizontally(SIZE.0 / 2);
    throughput::draw(&left, report, measurements, model)?;
    goodput::draw(&right, report)?;
    canvas.present()?;
    Ok(())
}

/// The files by the last two parts of their paths, where that fits.
fn title_text(files: &[String]) -> String {
    let short = |file: &String| {
        let parts: Vec<&str> = file.split('/').collect();
        parts[parts.len().saturating_sub(2)..].join("/")
    };
    let names = files.iter().map(short).collect::<Vec<_>>().join(" + ");
    let shown = if names.chars().count() <= TITLE_CHARS_MAX { names } else { format!("{} files", files.len()) };
    // Control characters have no place in XML.
    shown.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}
