use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use pollux_lab::{ColumnKind, ExperimentReport, Fact, Grid, Value};

use crate::table::{Align, Cell, Table};

/// Writes the report for people.
pub(crate) fn write_text(report: &ExperimentReport, out: &mut dyn Write) -> io::Result<()> {
    let (bold, dimmed) = (Style::new().bold(), Style::new().dimmed());
    writeln!(out, "{bold}{}{bold:#}\n{}\n", report.title, report.question)?;
    for Fact { name, value } in &report.facts {
        writeln!(out, "{dimmed}{name}: {value}{dimmed:#}")?;
    }
    writeln!(out)?;
    table(&report.table).write("", out)?;
    if !report.paper.is_empty() {
        writeln!(out, "\n{}", report.paper)?;
    }
    let path = report.results.join(&report.name);
    writeln!(out, "\n{dimmed}written to {}.csv, .md and .svg{dimmed:#}", path.display())
}

fn table(grid: &Grid) -> Table {
    let align = |kind| match kind {
        ColumnKind::Text => Align::Left,
        ColumnKind::Number => Align::Right,
    };
    let headings: Vec<(&str, Align)> =
        grid.columns.iter().map(|column| (column.heading.as_str(), align(column.kind))).collect();
    let mut table = Table::with_headings(&headings);
    for line in &grid.lines {
        table.push(line.iter().map(cell).collect());
    }
    table
}

fn cell(value: &Value) -> Cell {
    let style = match value {
        Value::Text(_) | Value::Measured(_) | Value::Nothing => Style::new(),
        Value::Expected { .. } if value.is_missed() => AnsiColor::Yellow.on_default(),
        Value::Expected { .. } => Style::new().dimmed(),
    };
    Cell::styled(value.shown(), style)
}
