use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Head, WIDTH, colours};
use crate::experiment::file::Panel;
use crate::experiment::results::Results;
use crate::experiment::timeline::{JobTimeline, Timeline};
use crate::plot::axis::{Axis, linear_ticks, short};
use crate::plot::panel::{Canvas, DrawResult, FAINT, INK, LABEL_SIZE, LINE_WIDTH, LegendEntry, Mark, frame, text};
use crate::plot::{printable, svg};

const PANEL_HEIGHT: u32 = 460;
/// Room at the top of a panel, as a share of its values.
const HEADROOM: f64 = 1.15;
/// How much of every other phase's shade covers the grid below.
const SHADE: f64 = 0.12;

/// How a panel looks.
#[derive(Clone, Copy)]
struct Look {
    name: &'static str,
    series: fn(&JobTimeline<'_>) -> Vec<(f64, f64)>,
    /// Where the axis ends whatever the values; none for a little above them.
    high: Option<f64>,
    /// Whether values hold until the next, or change on the way to it.
    holds: bool,
}

impl Look {
    fn of(panel: Panel) -> Self {
        let steps = |name, series| Self { name, series, high: None, holds: true };
        match panel {
            Panel::Gpus => steps("GPUs", |timeline| timeline.gpus()),
            Panel::BatchSize => steps("batch size (samples)", |timeline| timeline.batch_sizes()),
            Panel::Efficiency => {
                let percent = |timeline: &JobTimeline<'_>| {
                    timeline.efficiency().iter().map(|&(at, share)| (at, share * 100.0)).collect()
                };
                Self { high: Some(105.0), ..steps("efficiency (%)", percent) }
            }
            Panel::Nodes => steps("nodes", |timeline| timeline.nodes()),
            Panel::Cost => Self { holds: false, ..steps("cost (node-hours)", |timeline| timeline.cost()) },
        }
    }
}

/// A job over time under each row, its phases shaded.
pub(super) fn draw(
    results: &Results<'_>,
    timeline: &Timeline<'_>,
    job: &str,
    panels: &[Panel],
) -> anyhow::Result<String> {
    let colours = colours(results);
    let entry = |row: &JobTimeline<'_>| LegendEntry {
        mark: Mark::Line,
        colour: colours[row.row],
        label: format!("{} under {}", printable(job), printable(row.label)),
    };
    let head = Head::new(results, timeline.rows.iter().map(entry).collect());
    let height = head.height() + panels.len() as u32 * PANEL_HEIGHT;
    let looks: Vec<Look> = panels.iter().map(|&panel| Look::of(panel)).collect();
    svg((WIDTH, height), |canvas| {
        let areas = head.draw(canvas)?.split_evenly((looks.len(), 1));
        for idx in 0..looks.len() {
            draw_panel(&areas[idx], timeline, &looks, idx, &colours)?;
        }
        Ok(())
    })
}

/// The first panel names the phases, the last one the axis of time that all share.
fn draw_panel(
    area: &Canvas<'_>,
    timeline: &Timeline<'_>,
    looks: &[Look],
    idx: usize,
    colours: &[RGBColor],
) -> DrawResult<()> {
    let Look { name, series, high, holds } = looks[idx];
    let end_h = timeline.end_h();
    let values = timeline.rows.iter().flat_map(series).map(|(_, value)| value);
    let most = values.fold(1.0, f64::max);
    let high = high.unwrap_or(most * HEADROOM);
    let x_axis = Axis { range: 0.0..end_h * 1.005, ticks: linear_ticks(end_h), label: short };
    let x_name = if idx + 1 == looks.len() { "time (h)" } else { "" };
    let y_axis = Axis { range: 0.0..high, ticks: linear_ticks(high), label: short };
    let mut chart = frame(area, (x_axis, x_name), (y_axis, name))?;
    for phase in timeline.phases.iter().skip(1).step_by(2) {
        let corners = [(phase.from_h, 0.0), (phase.until_h, high)];
        chart.draw_series([Rectangle::new(corners, FAINT.mix(SHADE).filled())])?;
    }
    for phase in timeline.phases.iter().filter(|_| idx == 0) {
        let middle = f64::midpoint(phase.from_h, phase.until_h);
        let style = text(LABEL_SIZE, INK).pos(Pos::new(HPos::Center, VPos::Top));
        chart.draw_series([Text::new(printable(phase.label), (middle, high * 0.985), style)])?;
    }
    for row in &timeline.rows {
        let points = series(row);
        let points = if holds { steps(&points, row.end_h()) } else { points };
        chart.draw_series(LineSeries::new(points, colours[row.row].stroke_width(LINE_WIDTH)))?;
    }
    Ok(())
}

/// What holds from each moment on, as corners of a line.
fn steps(series: &[(f64, f64)], until: f64) -> Vec<(f64, f64)> {
    let ends = series.iter().skip(1).map(|sample| sample.0).chain([until]);
    series.iter().zip(ends).flat_map(|(&(from, value), end)| [(from, value), (end, value)]).collect()
}
