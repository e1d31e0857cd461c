use plotters::prelude::*;

use super::{Head, WIDTH};
use crate::experiment::outcome::Outcome;
use crate::experiment::results::{Place, Results};
use crate::plot::axis::{Axis, linear_ticks, log_ticks, short};
use crate::plot::palette::row_colours;
use crate::plot::panel::{FAINT, INK, LINE_WIDTH, LegendEntry, Mark, frame};
use crate::plot::{DrawError, printable, svg};

const PANEL_HEIGHT: u32 = 900;
/// Beyond this the axis is logarithmic.
const LINEAR_MAX: f64 = 6.0;

/// Finish-time fairness of every job of a row at a place of the axis, from small to large.
struct Distribution {
    label: String,
    colour: RGBColor,
    rho: Vec<f64>,
}

/// The share of jobs up to each finish-time fairness, a line for each row and place of the axis.
pub(super) fn draw(results: &Results<'_>) -> Result<String, DrawError> {
    let distributions = distributions(results);
    let mut legend: Vec<LegendEntry> = distributions
        .iter()
        .map(|distribution| LegendEntry {
            mark: Mark::Line,
            colour: distribution.colour,
            label: distribution.label.clone(),
        })
        .collect();
    legend.push(LegendEntry {
        mark: Mark::Dashed,
        colour: FAINT,
        label: "as fast as alone on a fair share".to_owned(),
    });
    let head = Head::new(results, legend);
    let ends = || distributions.iter().flat_map(|distribution| distribution.rho.first().zip(distribution.rho.last()));
    let high = ends().map(|(_, most)| *most).fold(1.0, f64::max);
    let low = ends().map(|(least, _)| *least).fold(1.0, f64::min).max(1e-3);
    let (x_axis, x): (Axis, fn(f64) -> f64) = if high > LINEAR_MAX {
        let ticks = log_ticks(low, high * 1.1).into_iter().map(f64::log10).collect();
        let range = low.log10() - 0.02..(high * 1.1).log10();
        (Axis { range, ticks, label: |place| short(10f64.powf(place)) }, f64::log10)
    } else {
        (Axis { range: 0.0..high * 1.05, ticks: linear_ticks(high * 1.05), label: short }, |rho| rho)
    };
    svg((WIDTH, head.height() + PANEL_HEIGHT), |canvas| {
        let body = head.draw(canvas)?;
        let y_axis = Axis { range: 0.0..101.0, ticks: linear_ticks(100.0), label: short };
        let name = "finish-time fairness ρ: completion time against that alone on a fair share";
        let mut chart = frame(&body, (x_axis, name), (y_axis, "share of jobs (%)"))?;
        let fair = [(x(1.0), 0.0), (x(1.0), 100.0)];
        chart.draw_series(DashedLineSeries::new(fair, 14, 10, FAINT.stroke_width(3)))?;
        for Distribution { colour, rho, .. } in &distributions {
            let share = |count: usize| 100.0 * count as f64 / rho.len() as f64;
            let steps = rho.iter().enumerate().flat_map(|(idx, &rho)| [(x(rho), share(idx)), (x(rho), share(idx + 1))]);
            chart.draw_series(LineSeries::new(steps, colour.stroke_width(LINE_WIDTH)))?;
        }
        Ok(())
    })
}

fn distributions(results: &Results<'_>) -> Vec<Distribution> {
    let mut distributions = Vec::new();
    let mut policies = Vec::new();
    for source in 0..results.sources.len() {
        for (row, settings) in results.file.rows.iter().enumerate() {
            for point in 0..results.file.points() {
                let mut label = printable(&settings.label);
                if let Some(axis) = &results.file.axis {
                    label += &format!(", {} {}", axis.setting.heading(), axis.values[point]);
                }
                if results.sources.len() > 1 {
                    label += &format!(", {} jobs", printable(&results.sources[source]));
                }
                let runs = results.outcomes(Place { source, row, point }).iter().filter_map(Outcome::run);
                let mut rho: Vec<f64> = runs.flat_map(|run| &run.jobs).map(|job| job.rho).collect();
                rho.sort_by(f64::total_cmp);
                policies.push(results.policies[row].name());
                distributions.push(Distribution { label, colour: INK, rho });
            }
        }
    }
    for (distribution, colour) in distributions.iter_mut().zip(row_colours(&policies)) {
        distribution.colour = colour;
    }
    distributions
}
