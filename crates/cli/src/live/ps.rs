use std::io::{self, Write};

use clap::Args;
use clap::builder::styling::Style;
use pollux_api::{Job, JobList};
use pollux_client::JobQuery;
use pollux_job::Phase;

use super::server_args::ServerArgs;
use super::text::{amount, has_ended, known, now_ms, percent, phase, phase_style, seconds_between, span};
use crate::output::{self, ListFormat, one_line};
use crate::table::{Align, Cell, Table};
use crate::usage::whole;

/// What `pollux ps` takes.
#[derive(Args, Debug)]
pub(crate) struct PsArgs {
    /// Also list finished jobs, the newest first
    #[arg(short, long)]
    all: bool,

    /// Only jobs in this phase: queued, starting, running, resizing, paused, succeeded, failed or cancelled
    #[arg(long, value_name = "PHASE", value_parser = phase)]
    phase: Option<Phase>,

    /// Only jobs of this owner: the label of the token that submitted them
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// Maximum number of jobs to list
    #[arg(long, value_name = "N", default_value_t = 100, allow_negative_numbers = true)]
    #[arg(value_parser = whole(1..=1_000_000_u32, "expected whole numbers from 1 to 1000000"))]
    limit: u32,

    /// Print a table, JSON, or only the numbers of jobs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = ListFormat::Table)]
    output: ListFormat,

    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Lists jobs.
pub(crate) fn run(args: &PsArgs) -> anyhow::Result<()> {
    let query = JobQuery { phase: args.phase, owner: args.owner.as_deref(), ..JobQuery::default() };
    let mut list = args.server.client()?.jobs_up_to(args.limit, query)?;
    if args.phase.is_none() && !args.all {
        list.jobs.retain(|job| !has_ended(job.phase));
        list.next_before = None;
        if list.jobs.is_empty() && args.owner.is_some() {
            output::note(&"no queued or running job has this owner; -a includes finished jobs");
        } else if list.jobs.is_empty() {
            output::note(&"no jobs are queued or running; `pollux ps -a` lists finished jobs");
        }
    }
    if list.next_after_live.or(list.next_before).is_some() {
        output::note(&format!("there are more than {} jobs: --limit N lists up to N", args.limit));
    }
    let ids = list.jobs.iter().map(|job| job.id);
    output::print_list(args.output, &list, ids, |out| write_table(&list, now_ms(), out))
}

fn write_table(list: &JobList, now_ms: u64, out: &mut dyn Write) -> io::Result<()> {
    if list.jobs.is_empty() {
        return Ok(());
    }
    let right = ["gpus", "batch", "samples/s", "efficiency", "goodput", "progress", "left", "age"];
    let mut columns = ["name", "owner", "phase"].map(|heading| (heading, Align::Left)).to_vec();
    columns.insert(0, ("id", Align::Right));
    columns.extend(right.map(|heading| (heading, Align::Right)));
    let mut table = Table::with_headings(&columns);
    for job in &list.jobs {
        table.push(line(job, now_ms));
    }
    table.write("", out)
}

fn line(job: &Job, now_ms: u64) -> Vec<Cell> {
    let style = phase_style(job.phase);
    let ended = has_ended(job.phase);
    let texts = [
        if ended { known(None::<u32>, |_| String::new()) } else { job.gpus().to_string() },
        known(job.batch_size, |batch| batch.to_string()),
        known(job.samples_per_s.filter(|_| !ended), amount),
        known(job.efficiency.filter(|_| !ended), percent),
        known(job.goodput.filter(|_| !ended), amount),
        known(job.progress, percent),
        known(job.remaining_s.filter(|_| !ended), span),
        span(seconds_between(job.submitted_ms, now_ms)),
    ];
    let rest = if ended { Style::new().dimmed() } else { Style::new() };
    let mut cells = vec![
        Cell::styled(job.id.to_string(), rest),
        Cell::styled(one_line(&job.name), rest),
        Cell::styled(one_line(&job.owner), rest),
        Cell::styled(job.phase.word(), style),
    ];
    cells.extend(texts.map(|text| Cell::styled(text, rest)));
    cells
}
