use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use pollux_lab::{Best, FitReport, Row, SCALING_EFFICIENCY_MIN, percent};

use crate::table::{Align, Cell, Table};

/// At or above this, GPUs are well used.
const SCALING_EFFICIENCY_GOOD: f64 = 0.75;
/// More rows than this are thinned out.
const ROWS_ALL_MAX: u32 = 16;
const INDENT: &str = "  ";

/// Writes the report for people.
pub(crate) fn write_text(report: &FitReport, out: &mut dyn Write) -> io::Result<()> {
    let bold = Style::new().bold();
    writeln!(out, "{bold}Fitted parameters{bold:#} ({})", report.settings.parallelism)?;
    parameter_table(report).write(INDENT, out)?;
    let error = &report.error;
    let tenths = |share: f64| format!("{:.1}%", share * 100.0);
    let (mean, median, max) = (tenths(error.mean), tenths(error.median), tenths(error.max));
    let (cells, rows) = (error.cells, error.rows);
    writeln!(out, "\n{bold}Error of predicted step times{bold:#} (configurations: {cells}, rows: {rows})")?;
    writeln!(out, "{INDENT}mean {mean}, median {median}, max {max}\n")?;
    writeln!(out, "{bold}Best batch by number of GPUs{bold:#}")?;
    gpu_table(report).write(INDENT, out)?;
    writeln!(out, "\n{}", report.recommendation.answer)
}

fn parameter_table(report: &FitReport) -> Table {
    let params = &report.parameters;
    let lines = [
        ("alpha_compute", time(params.alpha_compute), "", "compute of a micro-batch, whatever its size"),
        ("beta_compute", time(params.beta_compute), "per sample", "compute of each sample"),
        ("alpha_intranode", time(params.alpha_intranode), "", "synchronise 2 GPUs of one node"),
        ("beta_intranode", time(params.beta_intranode), "per GPU", "each further GPU of that node"),
        ("alpha_internode", time(params.alpha_internode), "", "synchronise 2 GPUs on different nodes"),
        ("beta_internode", time(params.beta_internode), "per GPU", "each further GPU"),
        (
            "gamma",
            format!("{:.2}   ", params.gamma),
            "",
            "overlap of compute and synchronisation: 1 none, 10 nearly all",
        ),
    ];
    let mut table = Table::without_headings(&[Align::Left, Align::Right, Align::Left, Align::Left]);
    for (name, value, unit, meaning) in lines {
        let meaning = Cell::styled(meaning, Style::new().dimmed());
        table.push(vec![Cell::plain(name), Cell::plain(value), Cell::plain(unit), meaning]);
    }
    table
}

fn gpu_table(report: &FitReport) -> Table {
    let headings = [
        "GPUs",
        "nodes",
        "batch",
        "per GPU",
        "accumulation",
        "samples/s",
        "efficiency",
        "goodput",
        "speedup",
        "scaling",
    ];
    let mut table = Table::with_headings(&headings.map(|heading| (heading, Align::Right)));
    let best = |row: &Row| row.best.map_or((0.0, 0.0), |best| (best.throughput, best.goodput));
    let throughput_max = report.rows.iter().map(|row| best(row).0).fold(0.0, f64::max);
    let goodput_max = report.rows.iter().map(|row| best(row).1).fold(0.0, f64::max);
    let digits = Digits { throughput: decimals(throughput_max), goodput: decimals(goodput_max) };
    let recommendation = &report.recommendation;
    let kept = [report.settings.gpus, recommendation.gpus, recommendation.peak_gpus];
    for row in report.rows.iter().filter(|row| is_shown(row.gpus, report.settings.gpus) || kept.contains(&row.gpus)) {
        table.push(match &row.best {
            Some(best) => feasible_line(report, row, best, digits),
            None => infeasible_line(row, headings.len()),
        });
    }
    table
}

fn feasible_line(report: &FitReport, row: &Row, best: &Best, digits: Digits) -> Vec<Cell> {
    let speedup = best.scaling_efficiency * f64::from(row.gpus);
    let chosen = row.gpus == report.recommendation.gpus;
    let gpus = Cell::styled(row.gpus.to_string(), if chosen { Style::new().bold() } else { Style::new() });
    vec![
        gpus,
        Cell::plain(row.nodes.to_string()),
        Cell::plain(best.batch_size.to_string()),
        Cell::plain(best.local_batch.to_string()),
        Cell::plain(best.accumulation_steps.to_string()),
        Cell::plain(format!("{:.*}", digits.throughput, best.throughput)),
        Cell::plain(format!("{:.1}%", best.efficiency * 100.0)),
        Cell::plain(format!("{:.*}", digits.goodput, best.goodput)),
        Cell::plain(format!("{speedup:.2}x")),
        Cell::styled(percent(best.scaling_efficiency), scaling_style(best.scaling_efficiency)),
    ]
}

/// Digits after the point, the same in a whole column.
#[derive(Clone, Copy)]
struct Digits {
    throughput: usize,
    goodput: usize,
}

fn infeasible_line(row: &Row, columns: usize) -> Vec<Cell> {
    let mut line = vec![row.gpus.to_string(), row.nodes.to_string(), "no batch".to_owned()];
    line.resize(columns, "-".to_owned());
    line.into_iter().map(|text| Cell::styled(text, Style::new().dimmed())).collect()
}

fn scaling_style(scaling_efficiency: f64) -> Style {
    let colour = if scaling_efficiency >= SCALING_EFFICIENCY_GOOD {
        AnsiColor::Green
    } else if scaling_efficiency >= SCALING_EFFICIENCY_MIN {
        AnsiColor::Yellow
    } else {
        AnsiColor::Red
    };
    colour.on_default()
}

/// Every count while they are few; then 1, 2, 3, 4, 6, 8, 12, 16, 24, ...
fn is_shown(gpus: u32, shown: u32) -> bool {
    shown <= ROWS_ALL_MAX || gpus.is_power_of_two() || (gpus.is_multiple_of(3) && (gpus / 3).is_power_of_two())
}

/// As many digits after the point as a column with this largest value needs for four in all.
fn decimals(value_max: f64) -> usize {
    (0..6).find(|&digits| value_max * 10f64.powi(digits) >= 1000.0).map_or(6, |digits| digits as usize)
}

/// Seconds in the unit that makes them readable, three digits in all.
fn time(seconds: f64) -> String {
    let (value, unit) = [(1.0, "s "), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")]
        .into_iter()
        .map(|(scale, unit)| (seconds / scale, unit))
        .find(|(value, unit)| *value >= 0.9995 || *unit == "ns")
        .expect("the last unit takes any value");
    let digits = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let shown = [123.4, 1.0, 0.99999, 0.0456, 7.25e-4, 1e-8].map(time);
        assert_eq!(shown, ["123 s ", "1.00 s ", "1.00 s ", "45.6 ms", "725 µs", "10.0 ns"]);
    }

    #[test]
    fn many_rows_are_thinned_to_doublings_and_their_halves() {
        let shown: Vec<u32> = (1..=64).filter(|&gpus| is_shown(gpus, 64)).collect();
        assert_eq!(shown, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]);
        assert_eq!((1..=16).filter(|&gpus| is_shown(gpus, 16)).count(), 16);
    }

    #[test]
    fn a_column_has_four_digits_in_its_largest_value() {
        assert_eq!([12_345.0, 999.0, 10.0, 1.5, 0.0].map(decimals), [0, 1, 2, 3, 6]);
    }
}
