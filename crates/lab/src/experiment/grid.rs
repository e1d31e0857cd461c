//! The table of an experiment, and how it is written: Markdown, CSV or JSON.

use std::fmt;

use serde::{Serialize, Serializer};

/// Lines of values under named columns.
#[derive(Clone, Debug)]
pub struct Grid {
    /// In order.
    pub columns: Vec<Column>,
    /// A value for each column.
    pub lines: Vec<Vec<Value>>,
}

/// What a column holds.
#[derive(Clone, Debug)]
pub struct Column {
    /// For programs.
    pub name: String,
    /// For people.
    pub heading: String,
    /// How it is read.
    pub kind: ColumnKind,
}

/// Whether a column is read from its left or its right side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Words.
    Text,
    /// Numbers.
    Number,
}

/// One cell.
#[derive(Clone, Debug)]
pub enum Value {
    /// Words.
    Text(String),
    /// A figure that came out.
    Measured(Figure),
    /// What the figure before is compared with; `off` is the share by which it misses this.
    Expected {
        /// What was expected.
        figure: Figure,
        /// As a share of it.
        off: f64,
        /// The share that is accepted.
        tolerance: f64,
    },
    /// There is none.
    Nothing,
}

/// A number, by how many of its digits people read.
#[derive(Clone, Copy, Debug)]
pub enum Figure {
    /// Three in all.
    Number(f64),
    /// Three behind the point.
    Ratio(f64),
}

impl Column {
    pub(super) fn text(name: &str) -> Self {
        Self { name: name.to_owned(), heading: name.to_owned(), kind: ColumnKind::Text }
    }

    pub(super) fn number(name: impl Into<String>, heading: impl Into<String>) -> Self {
        Self { name: name.into(), heading: heading.into(), kind: ColumnKind::Number }
    }
}

impl Figure {
    const fn value(self) -> f64 {
        match self {
            Self::Number(value) | Self::Ratio(value) => value,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match *self {
            Self::Ratio(_) => 3,
            Self::Number(value) if value.abs() < 10.0 => 2,
            Self::Number(value) if value.abs() < 100.0 => 1,
            Self::Number(_) => 0,
        };
        write!(out, "{:.digits$}", self.value())
    }
}

impl Value {
    pub(super) const fn number(value: f64) -> Self {
        Self::Measured(Figure::Number(value))
    }

    /// For people.
    pub fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Measured(figure) => figure.to_string(),
            Self::Expected { figure, off, tolerance } if off.abs() <= *tolerance => {
                format!("{figure} ({:+.0}%)", percent(*off))
            }
            Self::Expected { figure, off, .. } => format!("expected {figure}, off by {:+.0}%", percent(*off)),
            Self::Nothing => String::new(),
        }
    }

    /// For programs: numbers only, to more digits than people read.
    fn raw(&self) -> String {
        match self {
            Self::Text(text) if text.contains([',', '"', '\n']) => format!("\"{}\"", text.replace('"', "\"\"")),
            Self::Text(text) => text.clone(),
            Self::Measured(figure) | Self::Expected { figure, .. } => number(figure.value()).to_string(),
            Self::Nothing => String::new(),
        }
    }

    /// Whether it is what was expected of a figure, and far from it.
    pub fn is_missed(&self) -> bool {
        matches!(self, Self::Expected { off, tolerance, .. } if off.abs() > *tolerance)
    }
}

/// Whole percent, where nothing has no sign.
fn percent(share: f64) -> f64 {
    (share * 100.0).round() + 0.0
}

/// Six digits, so that the last bits of another machine do not show.
fn number(value: f64) -> f64 {
    let digits = (5.0 - value.abs().max(f64::MIN_POSITIVE).log10().floor()).clamp(0.0, 12.0) as i32;
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

impl Grid {
    pub(super) fn markdown(&self) -> String {
        let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let aligns = self.columns.iter().map(|column| match column.kind {
            ColumnKind::Text => "---".to_owned(),
            ColumnKind::Number => "---:".to_owned(),
        });
        let headings = self.columns.iter().map(|column| column.heading.clone()).collect();
        let mut text = row(headings) + &row(aligns.collect());
        for line in &self.lines {
            text += &row(line.iter().map(|value| value.shown().replace('|', "\\|")).collect());
        }
        text
    }

    pub(super) fn csv(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
        let mut text = names.join(",") + "\n";
        for line in &self.lines {
            text += &line.iter().map(Value::raw).collect::<Vec<_>>().join(",");
            text.push('\n');
        }
        text
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Measured(figure) | Self::Expected { figure, .. } => serializer.serialize_f64(figure.value()),
            Self::Nothing => serializer.serialize_none(),
        }
    }
}

impl Serialize for Grid {
    /// A list of lines, each an object.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.lines.iter().map(|line| NamedLine { columns: &self.columns, line }))
    }
}

struct NamedLine<'a> {
    columns: &'a [Column],
    line: &'a [Value],
}

impl Serialize for NamedLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.columns.iter().map(|column| &column.name).zip(self.line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let columns = vec![Column::text("row"), Column::number("avg_jct_h", "average JCT (h)")];
        let columns = [columns, vec![Column::number("avg_jct_h expected", "expected")]].concat();
        let expected = |off| Value::Expected { figure: Figure::Number(0.76), off, tolerance: 0.1 };
        let number = Value::number;
        let lines = vec![
            vec![Value::Text("a, \"b\"".to_owned()), number(0.712_345_678_9), expected(-0.0627)],
            vec![Value::Text("c|d".to_owned()), number(1_234.567_89), expected(-0.2)],
            vec![Value::Text("e".to_owned()), number(0.0), Value::Nothing],
            vec![Value::Text("f".to_owned()), number(0.76), expected(-0.001)],
        ];
        Grid { columns, lines }
    }

    #[test]
    fn people_read_how_far_a_figure_is_from_what_was_expected() {
        let expected = "| row | average JCT (h) | expected |\n| --- | ---: | ---: |\n\
            | a, \"b\" | 0.71 | 0.76 (-6%) |\n| c\\|d | 1235 | expected 0.76, off by -20% |\n| e | 0.00 |  |\n\
            | f | 0.76 | 0.76 (+0%) |\n";
        assert_eq!(grid().markdown(), expected);
    }

    #[test]
    fn programs_read_numbers() {
        let expected = "row,avg_jct_h,avg_jct_h expected\n\
            \"a, \"\"b\"\"\",0.712346,0.76\nc|d,1234.57,0.76\ne,0,\nf,0.76,0.76\n";
        assert_eq!(grid().csv(), expected);
        let json = serde_json::to_value(grid()).unwrap();
        assert_eq!(json[1]["avg_jct_h expected"], 0.76);
        assert!(json[2]["avg_jct_h expected"].is_null());
    }
}
