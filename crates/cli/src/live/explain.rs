use std::io::{self, Write};

use clap::Args;
use clap::builder::styling::{AnsiColor, Style};
use pollux_api::Explanation;

use super::lookup::job_id;
use super::server_args::ServerArgs;
use super::text::{amount, bar, count, percent, phase_style};
use crate::output::{self, OutputFormat, one_line};
use crate::table::{Align, Cell, Table};

/// Cells of the longest bar.
const BAR: usize = 24;

/// What `pollux explain` takes.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// A job, by number or name
    job: String,

    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    output: OutputFormat,

    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Says why a job has what it has.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let client = args.server.client()?;
    let explanation = client.explanation(job_id(&client, &args.job)?)?;
    output::print(args.output, &explanation, |out| write_text(&explanation, out))
}

fn write_text(explanation: &Explanation, out: &mut dyn Write) -> io::Result<()> {
    let (bold, style) = (Style::new().bold(), phase_style(explanation.phase));
    let Explanation { id, name, phase, replicas, .. } = explanation;
    let on =
        if *replicas == 0 { String::new() } else { format!(" on {}", count(explanation.gpus_of(*replicas), "GPU")) };
    let (name, phase) = (one_line(name), phase.word());
    writeln!(out, "{bold}job {id} {name}{bold:#}: {style}{phase}{style:#}{on}")?;
    for sentence in &explanation.sentences {
        writeln!(out, "  {}", one_line(sentence))?;
    }
    if !explanation.sizes.is_empty() {
        writeln!(out)?;
        sizes(explanation).write("", out)?;
    }
    if !explanation.types.is_empty() {
        writeln!(out)?;
        types(explanation).write("", out)?;
    }
    Ok(())
}

/// What other types of GPU would be worth, estimates dimmed.
fn types(explanation: &Explanation) -> Table {
    let right = ["gpus", "nodes", "batch", "samples/s", "goodput"];
    let mut columns = vec![("type", Align::Left)];
    columns.extend(right.map(|heading| (heading, Align::Right)));
    columns.push(("", Align::Left));
    let mut table = Table::with_headings(&columns);
    let best = explanation.types.iter().map(|outlook| outlook.goodput).fold(f64::MIN_POSITIVE, f64::max);
    for outlook in &explanation.types {
        let style = if outlook.is_estimated { Style::new().dimmed() } else { Style::new() };
        let remark = if outlook.is_estimated { " estimated" } else { "" };
        let texts = [
            one_line(&outlook.gpu_type).to_string(),
            explanation.gpus_of(outlook.replicas).to_string(),
            outlook.nodes.to_string(),
            outlook.batch_size.to_string(),
            amount(outlook.samples_per_s),
            amount(outlook.goodput),
            bar(outlook.goodput / best, BAR) + remark,
        ];
        table.push(texts.map(|text| Cell::styled(text, style)).to_vec());
    }
    table
}

/// What other sizes would be worth, the present one marked, those that it was not measured on dimmed.
fn sizes(explanation: &Explanation) -> Table {
    let right = ["gpus", "nodes", "batch", "samples/s", "efficiency", "goodput"];
    let mut columns = vec![("", Align::Left)];
    columns.extend(right.map(|heading| (heading, Align::Right)));
    columns.push(("", Align::Left));
    let mut table = Table::with_headings(&columns);
    let best = explanation.sizes.iter().map(|size| size.goodput).fold(f64::MIN_POSITIVE, f64::max);
    for size in &explanation.sizes {
        let is_now = size.replicas == explanation.replicas;
        let style = match size.is_measured {
            _ if is_now => AnsiColor::Green.on_default().bold(),
            true => Style::new(),
            false => Style::new().dimmed(),
        };
        let remark = if size.is_measured || is_now { "" } else { " not measured" };
        let texts = [
            if is_now { "now".to_owned() } else { String::new() },
            explanation.gpus_of(size.replicas).to_string(),
            size.nodes.to_string(),
            size.batch_size.to_string(),
            amount(size.samples_per_s),
            percent(size.efficiency),
            amount(size.goodput),
            bar(size.goodput / best, BAR) + remark,
        ];
        table.push(texts.map(|text| Cell::styled(text, style)).to_vec());
    }
    table
}
