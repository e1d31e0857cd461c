use std::io::{self, Write};

use clap::Args;
use clap::builder::styling::{AnsiColor, Style};
use pollux_api::{Node, NodeList};
use pollux_job::size;

use super::server_args::ServerArgs;
use super::text::{known, now_ms, seconds_between, span};
use crate::output::{self, OutputFormat, one_line};
use crate::table::{Align, Cell, Table};

/// What `pollux nodes` takes.
#[derive(Args, Debug)]
pub(crate) struct NodesArgs {
    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    output: OutputFormat,

    #[command(flatten)]
    pub(super) server: ServerArgs,
}

/// Lists nodes.
pub(crate) fn run(args: &NodesArgs) -> anyhow::Result<()> {
    let list = args.server.client()?.nodes()?;
    output::print(args.output, &list, |out| write_table(&list, now_ms(), out))
}

fn write_table(list: &NodeList, now_ms: u64, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::with_headings(&[
        ("node", Align::Left),
        ("gpus", Align::Right),
        ("held", Align::Right),
        ("kind", Align::Left),
        ("cpus", Align::Right),
        ("memory", Align::Right),
        ("state", Align::Left),
        ("jobs", Align::Left),
    ]);
    for node in &list.nodes {
        let jobs = node.jobs.iter().map(|job| format!("{} {} x{}", job.id, one_line(&job.name), job.gpus()));
        let (state, style) = state(node, now_ms);
        table.push(vec![
            Cell::plain(one_line(&node.name)),
            Cell::plain(node.gpus.to_string()),
            Cell::plain(node.gpus_held.to_string()),
            Cell::plain(one_line(&node.gpu_type)),
            Cell::plain(known(node.cpus, |cpus| format!("{}/{cpus}", node.cpus_held))),
            Cell::plain(known(node.memory, |memory| format!("{}/{}", size(node.memory_held), size(memory)))),
            Cell::styled(state, style),
            Cell::plain(jobs.collect::<Vec<_>>().join(", ")),
        ]);
    }
    for node in &list.held_back {
        table.push(vec![
            Cell::plain(one_line(&node.name)),
            Cell::plain(node.gpus.to_string()),
            Cell::plain("0"),
            Cell::plain(one_line(&node.gpu_type)),
            Cell::plain("-"),
            Cell::plain("-"),
            Cell::styled("held back", AnsiColor::Yellow.on_default()),
            Cell::plain(format!("waits: {}", one_line(&node.reason))),
        ]);
    }
    table.write("", out)
}

/// Whether it is used, in words.
pub(super) fn state(node: &Node, now_ms: u64) -> (String, Style) {
    let yellow = AnsiColor::Yellow.on_default();
    match node.cooling_until_ms {
        _ if node.is_retired => ("retired".to_owned(), yellow),
        _ if node.is_unreachable => ("unreachable".to_owned(), AnsiColor::Red.on_default()),
        _ if node.is_draining && node.gpus_held > 0 => ("draining".to_owned(), yellow),
        _ if node.is_draining => ("drained".to_owned(), yellow),
        Some(until) if until > now_ms => (format!("cooling {}", span(seconds_between(now_ms, until))), yellow),
        Some(_) | None => ("up".to_owned(), AnsiColor::Green.on_default()),
    }
}
