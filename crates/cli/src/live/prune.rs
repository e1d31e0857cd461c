use std::io::{self, Write};

use clap::Args;
use pollux_api::{PruneReport, PruneRequest};
use pollux_job::size;

use super::server_args::ServerArgs;
use super::text::span;
use crate::output::{self, OutputFormat};
use crate::table::{Align, Cell, Table};

/// What `pollux prune` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Checkpoints of jobs that are live, paused ones included, are never deleted. The scheduler prunes by itself every ten
minutes, as `pollux up --keep-checkpoints-for` and `--keep-checkpoints-bytes` say.")]
pub(crate) struct PruneArgs {
    /// Only list what would be deleted
    #[arg(long)]
    dry_run: bool,

    /// Delete those of jobs that finished longer ago, such as 12h or 7d [default: the scheduler's setting]
    #[arg(long, value_name = "TIME", value_parser = pollux_job::seconds)]
    keep_for: Option<u64>,

    /// Of the rest, delete the oldest until they use no more than this, such as 50G [default: the scheduler's setting]
    #[arg(long, value_name = "BYTES", value_parser = pollux_job::bytes)]
    keep_bytes: Option<u64>,

    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    output: OutputFormat,

    #[command(flatten)]
    server: ServerArgs,
}

/// Deletes old checkpoints, and prints which.
pub(crate) fn run(args: &PruneArgs) -> anyhow::Result<()> {
    let PruneArgs { dry_run, keep_for, keep_bytes, .. } = *args;
    let report = args.server.client()?.prune(&PruneRequest { dry_run, keep_for_s: keep_for, keep_bytes })?;
    for failure in &report.failures {
        output::complain(failure);
    }
    output::print(args.output, &report, |out| write(&report, out))
}

fn write(report: &PruneReport, out: &mut dyn Write) -> io::Result<()> {
    if !report.deleted.is_empty() {
        let columns = [("JOB", Align::Right), ("SIZE", Align::Right), ("OVER FOR", Align::Right)];
        let mut table = Table::with_headings(&columns);
        for saved in &report.deleted {
            let cells = [saved.job.to_string(), size(saved.bytes), span(saved.age_s as f64)];
            table.push(cells.map(Cell::plain).to_vec());
        }
        table.write("", out)?;
    }
    let (freed, kept, live) = (report.bytes_freed, report.bytes_kept, report.bytes_live);
    let would = if report.dry_run { "would be freed" } else { "freed" };
    writeln!(
        out,
        "{} {would}; {} of jobs that are over and {} of live jobs are kept",
        size(freed),
        size(kept),
        size(live)
    )
}
