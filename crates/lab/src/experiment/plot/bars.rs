use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use pollux_sim::Requests;

use super::{Head, WIDTH};
use crate::experiment::grid::Figure;
use crate::experiment::measure::Measure;
use crate::experiment::results::{Place, Results};
use crate::plot::axis::{linear_ticks, short};
use crate::plot::palette::{lighter, row_colours};
use crate::plot::panel::{
    CHAR_WIDTH, Canvas, DrawResult, FAINT, GRID, INK, LABEL_SIZE, LEFT, LegendEntry, Mark, bold_text, text, tick,
};
use crate::plot::{DrawError, printable, svg};

const BAR_HEIGHT: i32 = 32;
const BAR_GAP: i32 = 4;
const GROUP_GAP: i32 = 20;
const PANEL_TITLE_HEIGHT: i32 = 70;
const TICKS_HEIGHT: i32 = 70;
const PANEL_GAP: i32 = 50;
/// Room for the figure behind a bar.
const FIGURE_WIDTH: i32 = 130;
/// Bars longer than this many times the median are cut.
const CUT: f64 = 2.5;

/// Rows of one name side by side.
struct Group {
    label: String,
    bars: Vec<Bar>,
}

struct Bar {
    place: Place,
    colour: RGBColor,
}

/// Where groups and panels lie.
struct Layout {
    groups: Vec<Group>,
    labels_width: i32,
    panel_width: i32,
}

/// A bar for each row in a panel for each measure.
pub(super) fn draw(results: &Results<'_>, measures: &[Measure]) -> Result<String, DrawError> {
    let groups = groups(results);
    let label_chars = groups.iter().map(|group| group.label.chars().count()).max().unwrap_or(0) as i32;
    let labels_width = LEFT + label_chars * CHAR_WIDTH + 20;
    let panel_width = (WIDTH as i32 - labels_width - 30) / measures.len() as i32;
    let head = Head::new(results, legend(results, measures));
    let layout = Layout { groups, labels_width, panel_width };
    let height = head.height() + (PANEL_TITLE_HEIGHT + layout.height() + TICKS_HEIGHT) as u32;
    svg((WIDTH, height), |canvas| {
        let body = head.draw(canvas)?;
        layout.draw_labels(&body)?;
        for (panel, &measure) in measures.iter().enumerate() {
            layout.draw_panel(&body, results, measure, panel as i32)?;
        }
        Ok(())
    })
}

fn groups(results: &Results<'_>) -> Vec<Group> {
    let rows = &results.file.rows;
    let mut groups: Vec<Group> = Vec::new();
    let mut policies = Vec::new();
    for source in 0..results.sources.len() {
        for (row, settings) in rows.iter().enumerate() {
            let mut label = printable(&settings.label);
            if results.sources.len() > 1 {
                label += &format!(", {}", results.sources[source]);
            }
            let bar = Bar { place: Place { source, row, point: 0 }, colour: FAINT };
            match groups.iter_mut().find(|group| group.label == label) {
                Some(group) => group.bars.push(bar),
                None => {
                    policies.push(results.policies[row].name());
                    groups.push(Group { label, bars: vec![bar] });
                }
            }
        }
    }
    for (group, colour) in groups.iter_mut().zip(row_colours(&policies)) {
        for bar in &mut group.bars {
            bar.colour = match rows[bar.place.row].requests {
                Requests::Tuned => colour,
                Requests::Realistic => lighter(colour, 0.55),
            };
        }
    }
    groups
}

fn legend(results: &Results<'_>, measures: &[Measure]) -> Vec<LegendEntry> {
    let entry = |mark, colour, label: &str| LegendEntry { mark, colour, label: label.to_owned() };
    let rows = &results.file.rows;
    let mut legend = Vec::new();
    if rows.iter().any(|row| row.requests == Requests::Realistic) {
        legend.push(entry(Mark::Bar, FAINT, "tuned requests"));
        legend.push(entry(Mark::Bar, lighter(FAINT, 0.55), "realistic requests"));
    }
    let expected = |measure| rows.iter().any(|row| row.expected.contains_key(measure));
    if results.comparable && measures.iter().any(expected) {
        legend.push(entry(Mark::Tick, INK, "expected, as published"));
    }
    legend
}

impl Layout {
    fn height(&self) -> i32 {
        self.groups.iter().map(|group| group_height(group) + GROUP_GAP).sum()
    }

    /// Each group with the height at which it begins.
    fn placed(&self) -> impl Iterator<Item = (i32, &Group)> {
        self.groups.iter().scan(PANEL_TITLE_HEIGHT + GROUP_GAP / 2, |top, group| {
            let here = *top;
            *top += group_height(group) + GROUP_GAP;
            Some((here, group))
        })
    }

    fn draw_labels(&self, body: &Canvas<'_>) -> DrawResult<()> {
        let style = text(LABEL_SIZE, INK).pos(Pos::new(HPos::Right, VPos::Center));
        for (top, group) in self.placed() {
            let middle = top + group_height(group) / 2;
            body.draw(&Text::new(group.label.clone(), (self.labels_width - 16, middle), style.clone()))?;
        }
        Ok(())
    }

    fn draw_panel(&self, body: &Canvas<'_>, results: &Results<'_>, measure: Measure, panel: i32) -> DrawResult<()> {
        let left = self.labels_width + panel * self.panel_width;
        let width = self.panel_width - PANEL_GAP - FIGURE_WIDTH;
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let figures = bars().flat_map(|bar| {
            [Some(results.measured(bar.place, measure)), results.expected(bar.place, measure)].into_iter().flatten()
        });
        let end = scale_end(figures.collect());
        let x = |value: f64| left + (f64::from(width) * (value / end)).round() as i32;
        body.draw(&Text::new(measure.title(), (left, 16), bold_text(LABEL_SIZE + 4, INK)))?;
        let (top, bottom) = (PANEL_TITLE_HEIGHT, PANEL_TITLE_HEIGHT + self.height());
        for value in linear_ticks(end) {
            body.draw(&PathElement::new(vec![(x(value), top), (x(value), bottom)], GRID.stroke_width(2)))?;
            let style = text(LABEL_SIZE - 2, INK).pos(Pos::new(HPos::Center, VPos::Top));
            body.draw(&Text::new(short(value), (x(value), bottom + 12), style))?;
        }
        for (top, group) in self.placed() {
            for (idx, bar) in group.bars.iter().enumerate() {
                let top = top + idx as i32 * (BAR_HEIGHT + BAR_GAP);
                let value = results.measured(bar.place, measure);
                let cut = value > end;
                let tip = x(value.min(end));
                body.draw(&Rectangle::new([(left, top), (tip, top + BAR_HEIGHT)], bar.colour.filled()))?;
                if cut {
                    draw_break(body, tip, top)?;
                }
                let expected = results.expected(bar.place, measure).filter(|expected| *expected <= end).map(x);
                if let Some(x) = expected {
                    body.draw(&PathElement::new(vec![(x, top - 3), (x, top + BAR_HEIGHT + 3)], tick(INK)))?;
                }
                let figure = Figure::Number(value).to_string();
                // A figure stays at its bar, unless what is expected would cross it out.
                let figure_end = tip + 12 + 14 * figure.len() as i32;
                let behind = expected.filter(|x| (tip - 6..figure_end).contains(x)).unwrap_or(tip) + 12;
                let style = text(LABEL_SIZE - 2, INK).pos(Pos::new(HPos::Left, VPos::Center));
                body.draw(&Text::new(figure, (behind, top + BAR_HEIGHT / 2 + 2), style))?;
            }
        }
        body.draw(&PathElement::new(vec![(left, top), (left, bottom)], FAINT.stroke_width(2)))
    }
}

fn group_height(group: &Group) -> i32 {
    group.bars.len() as i32 * (BAR_HEIGHT + BAR_GAP) - BAR_GAP
}

/// Two slanted white strokes near the tip: this bar is longer than it looks.
fn draw_break(body: &Canvas<'_>, tip: i32, top: i32) -> DrawResult<()> {
    for offset in [50, 34] {
        let stroke = vec![(tip - offset, top + BAR_HEIGHT + 2), (tip - offset + 14, top - 2)];
        body.draw(&PathElement::new(stroke, WHITE.stroke_width(6)))?;
    }
    Ok(())
}

/// The longest bar that is drawn in full: others are cut there.
fn scale_end(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let limit = CUT * values[values.len() / 2];
    let longest = values.iter().copied().filter(|value| *value <= limit).fold(0.0, f64::max);
    if longest > 0.0 { longest } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bars_far_beyond_the_others_are_cut() {
        assert_eq!(scale_end(vec![0.7, 1.0, 1.5, 5.6]), 1.5);
        assert_eq!(scale_end(vec![0.7, 2.8, 2.7, 5.6]), 5.6);
        assert_eq!(scale_end(vec![0.0]), 1.0);
    }
}
