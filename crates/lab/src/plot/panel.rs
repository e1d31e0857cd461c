//! Parts of a panel: colours, text, caption, legend and frame.

use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::Axis;

pub(crate) const INK: RGBColor = RGBColor(34, 34, 34);
pub(crate) const FAINT: RGBColor = RGBColor(130, 130, 130);
pub(crate) const GRID: RGBColor = RGBColor(230, 230, 230);
// Okabe and Ito's palette, which the colour-blind can tell apart.
pub(crate) const ORANGE: RGBColor = RGBColor(230, 159, 0);
pub(crate) const GREEN: RGBColor = RGBColor(0, 158, 115);
pub(crate) const BLUE: RGBColor = RGBColor(0, 114, 178);
pub(crate) const VERMILION: RGBColor = RGBColor(213, 94, 0);

/// Margin of titles and captions.
pub(crate) const LEFT: i32 = 56;
pub(crate) const LABEL_SIZE: u32 = 26;
pub(crate) const DOT_RADIUS: i32 = 8;
pub(crate) const LINE_WIDTH: u32 = 4;
pub(crate) const DASH: (i32, i32) = (14, 10);

const CAPTION_SIZE: u32 = 30;
const CAPTION_HEIGHT: u32 = 164;
pub(crate) const LEGEND_ROW_HEIGHT: i32 = 44;
const SWATCH_WIDTH: i32 = 60;
/// Wide enough for any sans-serif font: the viewer's is unknown.
pub(crate) const CHAR_WIDTH: i32 = 15;

pub(crate) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Axis, Axis>>;
pub(crate) type DrawResult<T> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// How a series looks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Solid line.
    Line,
    /// Dashed line.
    Dashed,
    /// Filled dots on a solid line.
    DotLine,
    /// Rings on a dashed line.
    RingDashed,
    /// One large dot.
    Dot,
    /// A filled box.
    Bar,
    /// A short upright line.
    Tick,
    /// Only the text.
    Nothing,
}

/// One series in a legend.
pub(crate) struct LegendEntry {
    pub(crate) mark: Mark,
    pub(crate) colour: RGBColor,
    pub(crate) label: String,
}

impl LegendEntry {
    fn swatch_width(&self) -> i32 {
        match self.mark {
            Mark::Nothing => 0,
            Mark::Line | Mark::Dashed | Mark::DotLine | Mark::RingDashed | Mark::Dot | Mark::Bar => SWATCH_WIDTH + 16,
            Mark::Tick => SWATCH_WIDTH / 2,
        }
    }

    fn width(&self) -> i32 {
        self.swatch_width() + 30 + CHAR_WIDTH * self.label.chars().count() as i32
    }
}

/// Writes title and legend on top of a panel and returns the rest of it.
pub(crate) fn caption<'a>(panel: &Canvas<'a>, title: &str, legend: &[Vec<LegendEntry>]) -> DrawResult<Canvas<'a>> {
    let (top, rest) = panel.split_vertically(CAPTION_HEIGHT);
    top.draw(&Text::new(title.to_owned(), (LEFT, 16), bold_text(CAPTION_SIZE, INK)))?;
    draw_legend(&top, legend, 78)?;
    Ok(rest)
}

/// Writes legend rows from a height downwards.
pub(crate) fn draw_legend(area: &Canvas<'_>, legend: &[Vec<LegendEntry>], top: i32) -> DrawResult<()> {
    for (row, entries) in legend.iter().enumerate() {
        let y = top + row as i32 * LEGEND_ROW_HEIGHT;
        let mut x = LEFT;
        for entry in entries {
            let colour = if entry.mark == Mark::Nothing { FAINT } else { INK };
            swatch(area, entry, (x, y))?;
            let style = text(LABEL_SIZE, colour).pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(entry.label.clone(), (x + entry.swatch_width(), y), style))?;
            x += entry.width();
        }
    }
    Ok(())
}

/// Breaks a legend into rows of a width.
pub(crate) fn wrap_legend(entries: Vec<LegendEntry>, width: u32) -> Vec<Vec<LegendEntry>> {
    let mut rows: Vec<Vec<LegendEntry>> = Vec::new();
    let mut left = 0;
    for entry in entries {
        if entry.width() > left {
            rows.push(Vec::new());
            left = width as i32 - 2 * LEFT;
        }
        left -= entry.width();
        rows.extend(rows.is_empty().then(Vec::new));
        if let Some(row) = rows.last_mut() {
            row.push(entry);
        }
    }
    rows
}

/// Draws the axes of a chart, each with what it is called.
pub(crate) fn frame<'a>(area: &Canvas<'a>, x: (Axis, &str), y: (Axis, &str)) -> DrawResult<Chart<'a>> {
    let mut chart = ChartBuilder::on(area)
        .margin_left(16)
        .margin_right(48)
        .margin_bottom(20)
        .x_label_area_size(92)
        .y_label_area_size(150)
        .build_cartesian_2d(x.0, y.0)?;
    chart
        .configure_mesh()
        .bold_line_style(GRID.stroke_width(2))
        .light_line_style(TRANSPARENT)
        .axis_style(FAINT.stroke_width(2))
        .set_all_tick_mark_size(10)
        .label_style(text(LABEL_SIZE, INK))
        .axis_desc_style(text(LABEL_SIZE, INK))
        .x_desc(x.1)
        .y_desc(y.1)
        .draw()?;
    Ok(chart)
}

/// How an upright line is drawn.
pub(crate) fn tick(colour: RGBColor) -> ShapeStyle {
    colour.stroke_width(LINE_WIDTH + 1)
}

fn swatch(area: &Canvas<'_>, entry: &LegendEntry, (x, y): (i32, i32)) -> DrawResult<()> {
    let line = vec![(x, y), (x + SWATCH_WIDTH, y)];
    let middle = (x + SWATCH_WIDTH / 2, y);
    match entry.mark {
        Mark::Line | Mark::DotLine => area.draw(&PathElement::new(line, entry.colour.stroke_width(LINE_WIDTH)))?,
        Mark::Dashed | Mark::RingDashed => {
            for start in [x, x + 22, x + 44] {
                let dash = vec![(start, y), (start + 16, y)];
                area.draw(&PathElement::new(dash, entry.colour.stroke_width(LINE_WIDTH)))?;
            }
        }
        Mark::Dot | Mark::Bar | Mark::Tick | Mark::Nothing => {}
    }
    match entry.mark {
        Mark::Line | Mark::Dashed | Mark::Nothing => {}
        Mark::DotLine => area.draw(&Circle::new(middle, DOT_RADIUS, entry.colour.filled()))?,
        Mark::Bar => area.draw(&Rectangle::new([(x, y - 14), (x + SWATCH_WIDTH, y + 14)], entry.colour.filled()))?,
        Mark::Tick => area.draw(&PathElement::new(vec![(x + 6, y - 18), (x + 6, y + 18)], tick(entry.colour)))?,
        Mark::Dot => area.draw(&Circle::new(middle, DOT_RADIUS + 4, entry.colour.filled()))?,
        Mark::RingDashed => {
            area.draw(&Circle::new(middle, DOT_RADIUS, WHITE.filled()))?;
            area.draw(&Circle::new(middle, DOT_RADIUS, entry.colour.stroke_width(LINE_WIDTH)))?;
        }
    }
    Ok(())
}

/// Text of a size in units.
pub(crate) fn text(size: u32, colour: RGBColor) -> TextStyle<'static> {
    font(size).color(&colour)
}

/// Bold text of a size in units.
pub(crate) fn bold_text(size: u32, colour: RGBColor) -> TextStyle<'static> {
    font(size).style(FontStyle::Bold).color(&colour)
}

fn font(size: u32) -> FontDesc<'static> {
    // plotters divides the size by 1.24 when it writes SVG.
    ("sans-serif", f64::from(size) * 1.24).into_font()
}
