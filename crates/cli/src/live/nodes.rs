use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use clap::{Args, Subcommand};
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

    #[command(subcommand)]
    command: Option<NodesCommand>,
}

/// What can be done with machines.
#[derive(Debug, Subcommand)]
enum NodesCommand {
    /// Remove machines that have joined: what runs there ends first. One that is lost is gone at once
    Remove {
        /// Machines, by name
        #[arg(value_name = "MACHINE", required = true)]
        machines: Vec<String>,
    },
}

/// Lists nodes, or removes machines.
pub(crate) fn run(args: &NodesArgs) -> anyhow::Result<()> {
    if let Some(NodesCommand::Remove { machines }) = &args.command {
        let client = args.server.client()?;
        for machine in machines {
            let done = match client.remove_machine(machine)?.is_gone {
                true => "is removed: what ran there counts as gone",
                false => "ends what runs there, and is removed then",
            };
            output::note(&format!("machine {} {done}", one_line(machine)));
        }
        return Ok(());
    }
    let list = args.server.client()?.nodes()?;
    output::print(args.output, &list, |out| write_table(&list, now_ms(), out))
}

fn write_table(list: &NodeList, now_ms: u64, out: &mut dyn Write) -> io::Result<()> {
    let has_ends = list.nodes.iter().any(|node| node.drains_at_ms.is_some());
    let mut headings = vec![
        ("node", Align::Left),
        ("gpus", Align::Right),
        ("held", Align::Right),
        ("kind", Align::Left),
        ("cpus", Align::Right),
        ("memory", Align::Right),
        ("state", Align::Left),
        ("agent", Align::Left),
        ("heard", Align::Left),
    ];
    headings.extend(has_ends.then_some(("ends", Align::Left)));
    headings.push(("jobs", Align::Left));
    let mut table = Table::with_headings(&headings);
    for node in &list.nodes {
        let jobs = node.jobs.iter().map(|job| format!("{} {} x{}", job.id, one_line(&job.name), job.gpus()));
        let (state, style) = state(node, now_ms);
        let agent = node.agent.as_ref();
        let heard = agent.and_then(|agent| agent.last_contact_ms);
        let mut row = vec![
            Cell::plain(one_line(&node.name)),
            Cell::plain(node.gpus.to_string()),
            Cell::plain(node.gpus_held.to_string()),
            Cell::plain(one_line(&node.gpu_type)),
            Cell::plain(known(node.cpus, |cpus| format!("{}/{cpus}", node.cpus_held))),
            Cell::plain(known(node.memory, |memory| format!("{}/{}", size(node.memory_held), size(memory)))),
            Cell::styled(state, style),
            Cell::plain(known(agent, |agent| one_line(&agent.version))),
            Cell::plain(known(heard, |at| format!("{} ago", span(seconds_between(at, now_ms))))),
        ];
        row.extend(has_ends.then(|| Cell::plain(end(node, now_ms))));
        row.push(Cell::plain(jobs.collect::<Vec<_>>().join(", ")));
        table.push(row);
    }
    for node in &list.held_back {
        let mut row = vec![
            Cell::plain(one_line(&node.name)),
            Cell::plain(node.gpus.to_string()),
            Cell::plain("0"),
            Cell::plain(one_line(&node.gpu_type)),
            Cell::plain("-"),
            Cell::plain("-"),
            Cell::styled("held back", AnsiColor::Yellow.on_default()),
            Cell::plain("-"),
            Cell::plain("-"),
        ];
        row.extend(has_ends.then(|| Cell::plain("-")));
        row.push(Cell::plain(format!("waits: {}", one_line(&node.reason))));
        table.push(row);
    }
    table.write("", out)
}

/// When it ends, or is to be empty where only that is known.
fn end(node: &Node, now_ms: u64) -> String {
    known(node.ends_at_ms.or(node.drains_at_ms), |at| match at > now_ms {
        true => format!("in {}", span(seconds_between(now_ms, at))),
        false => "now".to_owned(),
    })
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
