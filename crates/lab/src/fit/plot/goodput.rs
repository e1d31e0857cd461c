use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::fit::report::{FitReport, SCALING_EFFICIENCY_MIN, count, percent};
use crate::plot::axis::{Axis, gpu_ticks, linear_ticks, short, whole};
use crate::plot::panel::{
    BLUE, Canvas, Chart, DASH, DOT_RADIUS, DrawResult, FAINT, INK, LABEL_SIZE, LINE_WIDTH, LegendEntry, Mark,
    VERMILION, bold_text, caption, frame, text,
};

/// How far above the curve the panel reaches; perfect scaling may leave it.
const HEADROOM: f64 = 1.35;

/// Draws goodput by number of GPUs, perfect scaling, and the recommended number.
pub(super) fn draw(panel: &Canvas<'_>, report: &FitReport) -> DrawResult<()> {
    let area = caption(panel, "Goodput at the best batch of each number of GPUs", &legend())?;
    let recommendation = &report.recommendation;
    let gpus_shown = f64::from(report.settings.gpus);
    let per_gpu = recommendation.goodput / (f64::from(recommendation.gpus) * recommendation.scaling_efficiency);
    let goodput_max = report.rows.iter().filter_map(|row| row.best).map(|best| best.goodput).fold(0.0, f64::max);
    let high = (per_gpu * gpus_shown * 1.04).min(goodput_max * HEADROOM).max(goodput_max * 1.04);
    let gpus = report.settings.gpus;
    let x_axis = Axis { range: 0.0..gpus_shown * 1.02, ticks: gpu_ticks(gpus), label: whole };
    let y_axis = Axis { range: 0.0..high, ticks: linear_ticks(high), label: short };
    let mut chart = frame(&area, (x_axis, "GPUs"), (y_axis, "goodput (samples/s)"))?;
    let perfect_end = gpus_shown.min(high / per_gpu);
    let perfect = [(0.0, 0.0), (perfect_end, perfect_end * per_gpu)];
    chart.draw_series(DashedLineSeries::new(perfect, DASH.0, DASH.1, FAINT.stroke_width(3)))?;
    let chosen = (f64::from(recommendation.gpus), recommendation.goodput);
    let foot = [(chosen.0, 0.0), chosen];
    chart.draw_series(DashedLineSeries::new(foot, 6, 8, VERMILION.stroke_width(3)))?;
    for stretch in stretches(report) {
        chart.draw_series(LineSeries::new(stretch.iter().copied(), BLUE.stroke_width(LINE_WIDTH + 2)))?;
        if stretch.len() == 1 {
            chart.draw_series(stretch.iter().map(|&place| Circle::new(place, DOT_RADIUS, BLUE.filled())))?;
        }
    }
    chart.draw_series([Circle::new(chosen, DOT_RADIUS + 4, VERMILION.filled())])?;
    label(&mut chart, report)
}

/// Says what the recommended number is, at its foot: the space right above the axis is free of curves.
fn label(chart: &mut Chart<'_>, report: &FitReport) -> DrawResult<()> {
    let recommendation = &report.recommendation;
    let foot = (f64::from(recommendation.gpus), 0.0);
    let (side, offset) =
        if recommendation.gpus > report.settings.gpus / 2 { (HPos::Right, -20) } else { (HPos::Left, 20) };
    let scaling = format!("{} scaling efficiency", percent(recommendation.scaling_efficiency));
    let sided = |style: TextStyle<'static>| style.pos(Pos::new(side, VPos::Center));
    chart.draw_series([EmptyElement::at(foot)
        + Text::new(count(recommendation.gpus), (offset, -76), sided(bold_text(LABEL_SIZE + 2, VERMILION)))
        + Text::new(scaling, (offset, -34), sided(text(LABEL_SIZE, INK)))])?;
    Ok(())
}

/// The curve, cut where a number of GPUs has no feasible batch.
fn stretches(report: &FitReport) -> Vec<Vec<(f64, f64)>> {
    let feasible = report.rows.chunk_by(|a, b| a.best.is_some() == b.best.is_some());
    feasible
        .map(|rows| rows.iter().filter_map(|row| Some((f64::from(row.gpus), row.best?.goodput))).collect::<Vec<_>>())
        .filter(|places| !places.is_empty())
        .collect()
}

fn legend() -> Vec<Vec<LegendEntry>> {
    let least = SCALING_EFFICIENCY_MIN * 100.0;
    let recommended = format!("recommended: most goodput at a scaling efficiency of {least:.0}% or more");
    vec![
        vec![
            LegendEntry { mark: Mark::Line, colour: BLUE, label: "goodput".to_owned() },
            LegendEntry { mark: Mark::Dashed, colour: FAINT, label: "perfect scaling".to_owned() },
        ],
        vec![LegendEntry { mark: Mark::Dot, colour: VERMILION, label: recommended }],
    ]
}
