use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use pollux_lab::{RunReport, Seeded, SimReport};
use pollux_sim::{Autoscale, Summary};

use crate::table::{Align, Cell, Table};

/// A column of numbers: heading, unit, which number in that unit, its digits, and which end of the column is best.
struct Column {
    heading: &'static str,
    unit: &'static str,
    value: fn(&Summary) -> f64,
    digits: usize,
    best: Best,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Best {
    Lowest,
    Highest,
    /// More of it is neither better nor worse.
    Neither,
}

const MIN_S: f64 = 60.0;
const HOUR_S: f64 = 3600.0;

const COLUMNS: [Column; 12] = [
    column("avg", "min", |run| run.avg_jct_s / MIN_S, 1, Best::Lowest),
    column("p50", "min", |run| run.p50_jct_s / MIN_S, 1, Best::Lowest),
    column("p99", "min", |run| run.p99_jct_s / MIN_S, 1, Best::Lowest),
    column("makespan", "h", |run| run.makespan_s / HOUR_S, 2, Best::Lowest),
    column("GPU time", "h", |run| run.gpu_hours, 1, Best::Lowest),
    column("util", "%", |run| run.utilisation * 100.0, 1, Best::Neither),
    column("restarts", "/job", |run| run.restarts_per_job, 2, Best::Lowest),
    column("queued", "min", |run| run.avg_queued_s / MIN_S, 1, Best::Lowest),
    column("ρ max", "", |run| run.rho_max, 2, Best::Lowest),
    column("ρ p90", "", |run| run.rho_p90, 2, Best::Lowest),
    column("ρ > 1", "%", |run| run.rho_above_1 * 100.0, 1, Best::Lowest),
    column("efficiency", "%", |run| run.avg_efficiency * 100.0, 1, Best::Highest),
];

/// Beside them where nodes come and go.
const NODE_TIME: Column = column("node time", "h", |run| run.node_hours, 1, Best::Lowest);

/// Beside them where any did.
const FAILED: Column = column("failed", "jobs", |run| run.failed as f64, 0, Best::Lowest);

const fn column(
    heading: &'static str,
    unit: &'static str,
    value: fn(&Summary) -> f64,
    digits: usize,
    best: Best,
) -> Column {
    Column { heading, unit, value, digits, best }
}

/// Writes the report for people.
pub(crate) fn write_text(report: &SimReport, out: &mut dyn Write) -> io::Result<()> {
    write_settings(report, out)?;
    let policies = policies(report);
    let groups: Vec<&[RunReport]> = report.runs.chunks(policies.len()).collect();
    let has_failed = report.runs.iter().any(|run| run.summary.failed > 0);
    let rarer = [report.settings.autoscale.map(|_| &NODE_TIME), has_failed.then_some(&FAILED)];
    let columns: Vec<&Column> = COLUMNS.iter().chain(rarer.into_iter().flatten()).collect();
    let mut table = headings(&columns, policies.len() > 1);
    for group in &groups {
        let seed = match group[0].seeded {
            Seeded::Jobs | Seeded::Draws => format!(", seed {}", group[0].seed),
            Seeded::Failures => format!(", failure seed {}", group[0].seed),
            Seeded::Nothing => String::new(),
        };
        let title = format!("{} ({} jobs{seed})", group[0].workload, group[0].jobs.len());
        let summaries: Vec<Summary> = group.iter().map(|run| run.summary).collect();
        push_group(&mut table, &columns, &title, &policies, &summaries);
    }
    if groups.len() > 1 {
        let of_policy = |idx: usize| mean(&groups.iter().map(|group| group[idx].summary).collect::<Vec<_>>());
        let means: Vec<Summary> = (0..policies.len()).map(of_policy).collect();
        push_group(&mut table, &columns, &format!("mean of {}", groups.len()), &policies, &means);
    }
    table.write("", out)
}

fn write_settings(report: &SimReport, out: &mut dyn Write) -> io::Result<()> {
    let dimmed = Style::new().dimmed();
    let settings = &report.settings;
    let mut line = format!(
        "pollux {}: cluster {}, rounds of {} s, {} s per restart, epochs {}, {}",
        report.version,
        settings.cluster_text(),
        settings.interval_s,
        settings.restart_delay_s,
        if settings.declare_epochs { "declared" } else { "not declared" },
        settings.physics,
    );
    if let Some(resize_delay_s) = settings.resize_delay_s {
        line += &format!(", {resize_delay_s} s per resize in place");
    }
    if let Some(resume_delay_s) = settings.resume_delay_s {
        line += &format!(", {resume_delay_s} s per resumption");
    }
    if let Some(random) = &settings.random_jobs {
        line += &format!(", {}", random.text());
    }
    if settings.interference > 0.0 {
        line += &format!(", interference {:.0}%", settings.interference * 100.0);
    }
    if settings.failures_per_node_day > 0.0 {
        line += &format!(", {} failures per node and day", settings.failures_per_node_day);
    }
    if let Some(Autoscale { settings: band, .. }) = &settings.autoscale {
        line += &format!(", nodes for a utility of {} to {}", band.utility_low, band.utility_high);
    }
    if let Some(seed) = settings.failure_seed {
        line += &format!(", failure seed {seed}");
    }
    writeln!(out, "{dimmed}{line}{dimmed:#}\n")
}

/// Each policy once, in the order in which they were asked for.
fn policies(report: &SimReport) -> Vec<&str> {
    let same = |run: &&RunReport| run.workload == report.runs[0].workload;
    report.runs.iter().take_while(same).map(|run| run.policy.as_str()).collect()
}

/// A table with its headings and, below, their units.
fn headings(columns: &[&Column], compared: bool) -> Table {
    let ratio = if compared { &[("ratio", "")][..] } else { &[] };
    let numbers = columns.iter().map(|column| (column.heading, column.unit));
    let numbers: Vec<(&str, &str)> = ratio.iter().copied().chain(numbers).collect();
    let mut headings = vec![("policy", Align::Left)];
    headings.extend(numbers.iter().map(|&(heading, _)| (heading, Align::Right)));
    let mut table = Table::with_headings(&headings);
    let mut units = vec![Cell::plain("")];
    units.extend(numbers.iter().map(|&(_, unit)| Cell::styled(unit, Style::new().dimmed())));
    table.push(units);
    table
}

fn push_group(table: &mut Table, columns: &[&Column], title: &str, policies: &[&str], summaries: &[Summary]) {
    table.push_title(Cell::styled(title, Style::new().bold()));
    let compared = policies.len() > 1;
    let best: Vec<Option<String>> = columns.iter().map(|column| best_text(column, summaries)).collect();
    for (policy, summary) in policies.iter().zip(summaries) {
        let mut line = vec![Cell::plain(format!("  {policy}"))];
        if compared {
            line.push(Cell::plain(format!("{:.3}", summary.avg_jct_s / summaries[0].avg_jct_s)));
        }
        for (text, best) in columns.iter().map(|column| text(column, summary)).zip(&best) {
            let is_best = compared && best.as_ref() == Some(&text);
            let style = if is_best { AnsiColor::Green.on_default().bold() } else { Style::new() };
            line.push(Cell::styled(text, style));
        }
        table.push(line);
    }
}

fn text(column: &Column, summary: &Summary) -> String {
    format!("{:.*}", column.digits, (column.value)(summary))
}

/// What the best of a column looks like; values that look the same are equally good.
fn best_text(column: &Column, summaries: &[Summary]) -> Option<String> {
    let by_value = |a: &&Summary, b: &&Summary| (column.value)(a).total_cmp(&(column.value)(b));
    let best = match column.best {
        Best::Lowest => summaries.iter().min_by(by_value),
        Best::Highest => summaries.iter().max_by(by_value),
        Best::Neither => None,
    };
    best.map(|summary| text(column, summary))
}

fn mean(summaries: &[Summary]) -> Summary {
    let of = |value: fn(&Summary) -> f64| summaries.iter().map(value).sum::<f64>() / summaries.len() as f64;
    Summary {
        failed: of(|run| run.failed as f64).round() as usize,
        avg_jct_s: of(|run| run.avg_jct_s),
        p50_jct_s: of(|run| run.p50_jct_s),
        p99_jct_s: of(|run| run.p99_jct_s),
        makespan_s: of(|run| run.makespan_s),
        gpu_hours: of(|run| run.gpu_hours),
        node_hours: of(|run| run.node_hours),
        utilisation: of(|run| run.utilisation),
        restarts_per_job: of(|run| run.restarts_per_job),
        avg_queued_s: of(|run| run.avg_queued_s),
        rho_max: of(|run| run.rho_max),
        rho_p90: of(|run| run.rho_p90),
        rho_above_1: of(|run| run.rho_above_1),
        avg_efficiency: of(|run| run.avg_efficiency),
    }
}
