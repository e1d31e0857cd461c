use std::collections::BTreeMap;

use plotters::prelude::*;
use pollux_model::{Observation, Shape, ThroughputModel};

use crate::fit::report::FitReport;
use crate::measurements::Measurements;
use crate::plot::axis::{Axis, doubling_ticks, log_ticks, short, whole};
use crate::plot::panel::{
    BLUE, Canvas, DASH, DOT_RADIUS, DrawResult, GREEN, INK, LINE_WIDTH, LegendEntry, Mark, ORANGE, caption, frame,
};

const COLOURS: [RGBColor; 3] = [ORANGE, GREEN, BLUE];
/// Points of a predicted line, which may reach over tens of thousands of GPUs.
const LINE_POINTS: u32 = 120;
/// In powers of ten.
const HEIGHT_MARGIN: f64 = 0.12;
const HEIGHT_SPAN_MIN: f64 = 0.8;

/// One local batch in one colour; places are `log2(GPUs)` and `log10(samples per second)`.
struct Series {
    local_batch: u32,
    colour: RGBColor,
    single_node: Links,
    multi_node: Links,
}

struct Links {
    measured: Vec<(f64, f64)>,
    predicted: Vec<(f64, f64)>,
}

/// Draws measured points and predicted lines by number of GPUs.
pub(super) fn draw(panel: &Canvas<'_>, report: &FitReport, measurements: &Measurements) -> DrawResult<()> {
    let observations = measurements.configurations();
    let series: Vec<Series> = representative_batches(&observations)
        .into_iter()
        .zip(COLOURS)
        .map(|(local_batch, colour)| Series::new(local_batch, colour, &observations, &report.model))
        .collect();
    let title = format!("Measured and predicted throughput, mean error {:.1}%", report.error.mean * 100.0);
    let area = caption(panel, &title, &legend(&series, measurements.multi_node_replicas_max() > 0))?;
    let (low, high) = height_range(&series);
    let doublings = f64::from(measurements.replicas_max()).log2();
    let x_axis = Axis {
        range: -0.2..doublings + 0.2,
        ticks: doubling_ticks(doublings),
        label: |doublings| whole(doublings.exp2()),
    };
    let y_axis = Axis {
        range: low..high,
        ticks: log_ticks(10f64.powf(low), 10f64.powf(high)).into_iter().map(f64::log10).collect(),
        label: |height| short(10f64.powf(height)),
    };
    let mut chart = frame(&area, (x_axis, "GPUs"), (y_axis, "throughput (samples/s)"))?;
    for Series { colour, single_node, multi_node, .. } in &series {
        let line = colour.stroke_width(LINE_WIDTH);
        chart.draw_series(LineSeries::new(single_node.predicted.iter().copied(), line))?;
        chart.draw_series(DashedLineSeries::new(multi_node.predicted.iter().copied(), DASH.0, DASH.1, line))?;
    }
    for Series { colour, single_node, multi_node, .. } in &series {
        let dot = |&place: &(f64, f64)| Circle::new(place, DOT_RADIUS, colour.filled());
        let paper = |&place: &(f64, f64)| Circle::new(place, DOT_RADIUS, WHITE.filled());
        let ring = |&place: &(f64, f64)| Circle::new(place, DOT_RADIUS, colour.stroke_width(LINE_WIDTH));
        chart.draw_series(multi_node.measured.iter().map(paper))?;
        chart.draw_series(multi_node.measured.iter().map(ring))?;
        chart.draw_series(single_node.measured.iter().map(dot))?;
    }
    Ok(())
}

/// From below the lowest place to above the highest, and far enough for a few ticks.
fn height_range(series: &[Series]) -> (f64, f64) {
    let heights = || series.iter().flat_map(Series::places).map(|(_, height)| height);
    let low = heights().fold(f64::INFINITY, f64::min) - HEIGHT_MARGIN;
    let high = heights().fold(f64::NEG_INFINITY, f64::max) + HEIGHT_MARGIN;
    let missing = (HEIGHT_SPAN_MIN - (high - low)).max(0.0);
    (low - missing / 2.0, high + missing / 2.0)
}

/// The smallest, a middle and the largest local batch, of those that were measured on many shapes.
fn representative_batches(observations: &[Observation]) -> Vec<u32> {
    let mut shapes = BTreeMap::<u32, usize>::new();
    for observation in observations {
        *shapes.entry(observation.local_batch).or_default() += 1;
    }
    let most = shapes.values().copied().max().unwrap_or(0);
    shapes.retain(|_, count| *count * 2 >= most);
    let batches: Vec<u32> = shapes.into_keys().collect();
    let mut chosen: Vec<u32> = [0, batches.len() / 2, batches.len() - 1].into_iter().map(|idx| batches[idx]).collect();
    chosen.dedup();
    chosen
}

impl Series {
    fn new(local_batch: u32, colour: RGBColor, observations: &[Observation], model: &ThroughputModel) -> Self {
        let links = |multi_node: bool| {
            let seen: Vec<Observation> = observations
                .iter()
                .filter(|seen| seen.local_batch == local_batch && (seen.shape.nodes() > 1) == multi_node)
                .copied()
                .collect();
            Links::new(&seen, local_batch, if multi_node { 2 } else { 1 }, model)
        };
        Self { local_batch, colour, single_node: links(false), multi_node: links(true) }
    }

    fn places(&self) -> impl Iterator<Item = (f64, f64)> {
        let all = [&self.single_node, &self.multi_node].into_iter();
        all.flat_map(|links| links.measured.iter().chain(&links.predicted).copied())
    }
}

impl Links {
    /// Predictions go from the fewest replicas these nodes can have to the most that were measured.
    fn new(seen: &[Observation], local_batch: u32, nodes: u32, model: &ThroughputModel) -> Self {
        let place = |shape: Shape, step_s: f64| {
            let replicas = f64::from(shape.replicas());
            (replicas.log2(), (replicas * f64::from(local_batch) / step_s).log10())
        };
        let Some(most) = seen.iter().map(|seen| seen.shape.replicas()).max() else {
            return Self { measured: Vec::new(), predicted: Vec::new() };
        };
        let stretch = (f64::from(most) / f64::from(nodes)).powf(1.0 / f64::from(LINE_POINTS));
        let mut counts: Vec<u32> =
            (0..=LINE_POINTS).map(|idx| (f64::from(nodes) * stretch.powf(f64::from(idx))).round() as u32).collect();
        counts.dedup();
        let shapes = counts.into_iter().filter_map(|replicas| Shape::new(nodes, replicas).ok());
        Self {
            measured: seen.iter().map(|seen| place(seen.shape, seen.step_s)).collect(),
            predicted: shapes.map(|shape| place(shape, model.step_s(shape, f64::from(local_batch), 0.0))).collect(),
        }
    }
}

fn legend(series: &[Series], has_multi_node: bool) -> Vec<Vec<LegendEntry>> {
    let batches = series.iter().enumerate().map(|(idx, series)| LegendEntry {
        mark: Mark::Line,
        colour: series.colour,
        label: format!("{}{}", if idx == 0 { "local batch " } else { "" }, series.local_batch),
    });
    let entry = |mark, label: &str| LegendEntry { mark, colour: INK, label: label.to_owned() };
    let mut links = vec![entry(Mark::DotLine, "one node")];
    if has_multi_node {
        links.push(entry(Mark::RingDashed, "several nodes"));
    }
    links.push(entry(Mark::Nothing, "(points measured, lines predicted)"));
    vec![batches.collect(), links]
}
