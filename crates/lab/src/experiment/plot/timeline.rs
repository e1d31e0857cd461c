use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Head, WIDTH, colours};
use crate::experiment::file::Panel;
use crate::experiment::results::Results;
use crate::experiment::timeline::{JobTimeline, Timeline};
use crate::plot::axis::{Axis, linear_ticks, short};
use crate::plot::panel::{Canvas, DrawResult, FAINT, INK, LABEL_SIZE, LINE_WIDTH, LegendEntry, Mark, frame, text};
use crate::plot::{DrawError, printable, svg};

const PANEL_HEIGHT: u32 = 460;
/// Room at the top of a panel, as a share of its values.
const HEADROOM: f64 = 1.15;
/// How much of every other phase's shade covers the grid below.
const SHADE: f64 = 0.12;

/// What a panel's axis is called.
const fn name(panel: Panel) -> &'static str {
    match panel {
        Panel::Gpus => "GPUs",
        Panel::BatchSize => "batch size (samples)",
        Panel::Efficiency => "efficiency (%)",
        Panel::Nodes => "nodes",
        Panel::Cost => "cost (node-hours)",
    }
}

/// The line of a row.
fn line(panel: Panel, row: &JobTimeline<'_>) -> Vec<(f64, f64)> {
    match panel {
        Panel::Gpus => steps(&row.gpus(), row.end_h()),
        Panel::BatchSize => steps(&row.batch_sizes(), row.end_h()),
        Panel::Efficiency => {
            let percent: Vec<_> = row.efficiency().iter().map(|&(at, share)| (at, share * 100.0)).collect();
            steps(&percent, row.end_h())
        }
        Panel::Nodes => steps(&row.nodes(), row.end_h()),
        Panel::Cost => row.cost(),
    }
}

/// Where its axis ends: a share has an end of its own, the rest leaves room for the names of phases.
fn high(panel: Panel, timeline: &Timeline<'_>) -> f64 {
    let values = timeline.rows.iter().flat_map(|row| line(panel, row)).map(|(_, value)| value);
    match panel {
        Panel::Efficiency => 105.0,
        Panel::Gpus | Panel::BatchSize | Panel::Nodes | Panel::Cost => values.fold(1.0, f64::max) * HEADROOM,
    }
}

/// A job over time under each row, its phases shaded.
pub(super) fn draw(
    results: &Results<'_>,
    timeline: &Timeline<'_>,
    job: &str,
    panels: &[Panel],
) -> Result<String, DrawError> {
    let colours = colours(results);
    let entry = |row: &JobTimeline<'_>| LegendEntry {
        mark: Mark::Line,
        colour: colours[row.row],
        label: format!("{} under {}", printable(job), printable(row.label)),
    };
    let head = Head::new(results, timeline.rows.iter().map(entry).collect());
    let height = head.height() + panels.len() as u32 * PANEL_HEIGHT;
    svg((WIDTH, height), |canvas| {
        for (idx, area) in head.draw(canvas)?.split_evenly((panels.len(), 1)).iter().enumerate() {
            draw_panel(area, timeline, panels, idx, &colours)?;
        }
        Ok(())
    })
}

/// The first panel names the phases, the last one the axis of time that all share.
fn draw_panel(
    area: &Canvas<'_>,
    timeline: &Timeline<'_>,
    panels: &[Panel],
    idx: usize,
    colours: &[RGBColor],
) -> DrawResult<()> {
    let panel = panels[idx];
    let (end_h, high) = (timeline.end_h(), high(panel, timeline));
    let x_axis = Axis { range: 0.0..end_h * 1.005, ticks: linear_ticks(end_h), label: short };
    let x_name = if idx + 1 == panels.len() { "time (h)" } else { "" };
    let y_axis = Axis { range: 0.0..high, ticks: linear_ticks(high), label: short };
    let mut chart = frame(area, (x_axis, x_name), (y_axis, name(panel)))?;
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
        chart.draw_series(LineSeries::new(line(panel, row), colours[row.row].stroke_width(LINE_WIDTH)))?;
    }
    Ok(())
}

/// What holds from each moment on, as corners of a line.
fn steps(series: &[(f64, f64)], until: f64) -> Vec<(f64, f64)> {
    let ends = series.iter().skip(1).map(|sample| sample.0).chain([until]);
    series.iter().zip(ends).flat_map(|(&(from, value), end)| [(from, value), (end, value)]).collect()
}
