//! What all pictures share: one size of units, axes, text, colours.

pub(crate) mod axis;
pub(crate) mod palette;
pub(crate) mod panel;

use std::io;

use plotters::prelude::*;
use thiserror::Error;

use panel::{Canvas, DrawResult};

/// The backend rounds to whole units, so that curves need units smaller than a pixel.
const UNITS_PER_PIXEL: u32 = 2;

/// A plot that could not be drawn, for a reason of the drawing library's own.
#[derive(Debug, Error)]
#[error("cannot draw the plot: {0}")]
pub struct DrawError(DrawingAreaErrorKind<io::Error>);

/// A white picture of a size in units, as SVG text.
pub(crate) fn svg(size: (u32, u32), draw: impl FnOnce(&Canvas<'_>) -> DrawResult<()>) -> Result<String, DrawError> {
    let mut svg = String::new();
    draw_on(&mut svg, size, draw).map_err(DrawError)?;
    let size = |per_pixel: u32| format!(r#"width="{}" height="{}""#, size.0 / per_pixel, size.1 / per_pixel);
    Ok(svg.replacen(&size(1), &size(UNITS_PER_PIXEL), 1))
}

fn draw_on(svg: &mut String, size: (u32, u32), draw: impl FnOnce(&Canvas<'_>) -> DrawResult<()>) -> DrawResult<()> {
    let canvas = SVGBackend::with_string(svg, size).into_drawing_area();
    canvas.fill(&WHITE)?;
    draw(&canvas)?;
    canvas.present()
}

/// Text without control characters, which have no place in XML.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}
