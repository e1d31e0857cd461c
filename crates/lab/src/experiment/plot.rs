//! The picture of an experiment.

mod bars;
mod fairness;
mod lines;
mod timeline;

use plotters::prelude::*;

use super::file::Plot;
use super::results::Results;
use super::timeline::Timeline;
use crate::plot::palette::row_colours;
use crate::plot::panel::{
    self, Canvas, DrawResult, LEFT, LEGEND_ROW_HEIGHT, LegendEntry, bold_text, draw_legend, wrap_legend,
};
use crate::plot::{DrawError, printable};

const WIDTH: u32 = 2400;
const TITLE_HEIGHT: u32 = 100;

/// Draws results as SVG text.
pub(super) fn draw(results: &Results<'_>) -> Result<String, DrawError> {
    match &results.file.plot {
        Plot::Bars { measures } => bars::draw(results, measures),
        Plot::Lines { measures } => lines::draw(results, measures),
        Plot::Fairness {} => fairness::draw(results),
        Plot::Timeline { job, panels, phases } => {
            timeline::draw(results, &Timeline::new(results, job, phases), job, panels)
        }
    }
}

/// Title and legend of a whole picture.
struct Head {
    title: String,
    legend: Vec<Vec<LegendEntry>>,
}

impl Head {
    fn new(results: &Results<'_>, legend: Vec<LegendEntry>) -> Self {
        Self { title: printable(&results.file.title), legend: wrap_legend(legend, WIDTH) }
    }

    fn height(&self) -> u32 {
        TITLE_HEIGHT + self.legend.len() as u32 * LEGEND_ROW_HEIGHT as u32 + 20
    }

    /// Draws it on top and returns the rest.
    fn draw<'a>(&self, canvas: &Canvas<'a>) -> DrawResult<Canvas<'a>> {
        let (top, rest) = canvas.split_vertically(self.height());
        top.draw(&Text::new(self.title.clone(), (LEFT, 34), bold_text(40, panel::INK)))?;
        draw_legend(&top, &self.legend, TITLE_HEIGHT as i32 + LEGEND_ROW_HEIGHT / 2)?;
        Ok(rest)
    }
}

/// The colour of each row.
fn colours(results: &Results<'_>) -> Vec<RGBColor> {
    let names: Vec<&str> = results.policies.iter().map(pollux_policy::PolicySettings::name).collect();
    row_colours(&names)
}
