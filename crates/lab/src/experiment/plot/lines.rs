use plotters::prelude::*;

use super::{Head, WIDTH, colours};
use crate::experiment::measure::Measure;
use crate::experiment::results::{Place, Results};
use crate::plot::axis::{Axis, linear_ticks, short};
use crate::plot::panel::{
    Canvas, DASH, DOT_RADIUS, DrawResult, FAINT, INK, LABEL_SIZE, LEFT, LINE_WIDTH, LegendEntry, Mark, bold_text, frame,
};
use crate::plot::{DrawError, printable, svg};

const PANEL_HEIGHT: u32 = 780;
const PANEL_TITLE_HEIGHT: u32 = 70;
const COLUMNS_MAX: usize = 3;
/// Values that reach this far are drawn by their doublings.
const DOUBLED_FROM: f64 = 8.0;

/// A line for each row over the axis, in a panel for each kind of workload and measure.
pub(super) fn draw(results: &Results<'_>, measures: &[Measure]) -> Result<String, DrawError> {
    let sources = 0..results.sources.len();
    let panels: Vec<(usize, Measure)> =
        sources.flat_map(|source| measures.iter().map(move |&measure| (source, measure))).collect();
    let head = Head::new(results, legend(results, measures));
    let columns = if panels.len() == 4 { 2 } else { panels.len().min(COLUMNS_MAX) };
    let rows = panels.len().div_ceil(columns);
    let height = head.height() + rows as u32 * PANEL_HEIGHT;
    svg((WIDTH, height), |canvas| {
        let body = head.draw(canvas)?;
        for (area, &(source, measure)) in body.split_evenly((rows, columns)).iter().zip(&panels) {
            draw_panel(area, results, source, measure)?;
        }
        Ok(())
    })
}

fn legend(results: &Results<'_>, measures: &[Measure]) -> Vec<LegendEntry> {
    let rows = results.file.rows.iter().zip(colours(results));
    let mut legend: Vec<LegendEntry> =
        rows.map(|(row, colour)| LegendEntry { mark: Mark::DotLine, colour, label: printable(&row.label) }).collect();
    let expected = |measure| results.file.rows.iter().any(|row| row.expected.contains_key(measure));
    if results.comparable && measures.iter().any(expected) {
        legend.push(LegendEntry { mark: Mark::RingDashed, colour: FAINT, label: "expected, as published".to_owned() });
    }
    legend
}

fn draw_panel(area: &Canvas<'_>, results: &Results<'_>, source: usize, measure: Measure) -> DrawResult<()> {
    let Some(axis) = &results.file.axis else { return Ok(()) };
    let (top, area) = area.split_vertically(PANEL_TITLE_HEIGHT);
    if results.sources.len() > 1 {
        let title = format!("{} jobs", printable(&results.sources[source]));
        top.draw(&Text::new(title, (LEFT, 16), bold_text(LABEL_SIZE + 4, INK)))?;
    }
    let places = |row: usize| (0..axis.values.len()).map(move |point| Place { source, row, point });
    let rows = 0..results.file.rows.len();
    let values = rows.clone().flat_map(places).flat_map(|place| {
        [Some(results.measured(place, measure)), results.expected(place, measure)].into_iter().flatten()
    });
    let high = values.fold(0.0, f64::max) * 1.06;
    let y_axis = Axis { range: 0.0..high, ticks: linear_ticks(high), label: short };
    let heading = axis.setting.heading();
    let (x_axis, x) = value_axis(&axis.values);
    let mut chart = frame(&area, (x_axis, &heading), (y_axis, &measure.title()))?;
    for (row, colour) in rows.zip(colours(results)) {
        let line = colour.stroke_width(LINE_WIDTH);
        let at = |place: Place| x(axis.values[place.point]);
        let expected: Vec<(f64, f64)> =
            places(row).filter_map(|place| Some((at(place), results.expected(place, measure)?))).collect();
        chart.draw_series(DashedLineSeries::new(expected.iter().copied(), DASH.0, DASH.1, line))?;
        chart.draw_series(expected.iter().map(|&place| Circle::new(place, DOT_RADIUS, WHITE.filled())))?;
        chart.draw_series(expected.iter().map(|&place| Circle::new(place, DOT_RADIUS, line)))?;
        let measured: Vec<(f64, f64)> =
            places(row).map(|place| (at(place), results.measured(place, measure))).collect();
        chart.draw_series(LineSeries::new(measured.iter().copied(), line))?;
        chart.draw_series(measured.iter().map(|&place| Circle::new(place, DOT_RADIUS, colour.filled())))?;
    }
    Ok(())
}

/// An axis with a tick at every value, by doublings where they reach far, and where on it a value lies.
fn value_axis(values: &[f64]) -> (Axis, fn(f64) -> f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let doubles = low > 0.0 && high / low >= DOUBLED_FROM;
    let place: fn(f64) -> f64 = if doubles { f64::log2 } else { |value| value };
    let label: fn(f64) -> String = if doubles { |place| short(place.exp2()) } else { short };
    let (low, high) = (place(low), place(high));
    let margin = if high > low { (high - low) * 0.06 } else { 1.0 };
    let ticks = values.iter().map(|&value| place(value)).collect();
    (Axis { range: low - margin..high + margin, ticks, label }, place)
}
