use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use clap::{Args, Subcommand};
use pollux_api::{AllocationQueue, AllocationQueueSpec, AllocationRehearsal, SlurmAllocation};
use thiserror::Error;

use super::server_args::ServerArgs;
use super::text::{count, known, moment, now_ms, seconds_between, span};
use crate::output::{self, OutputFormat, one_line};
use crate::table::{Align, Cell, Table};
use crate::usage::whole;

/// What `pollux alloc` takes.
#[derive(Args, Debug)]
pub(crate) struct AllocArgs {
    #[command(subcommand)]
    command: AllocCommand,

    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table, global = true)]
    output: OutputFormat,

    #[command(flatten)]
    server: ServerArgs,
}

/// What can be done with queues of allocations.
#[derive(Debug, Subcommand)]
enum AllocCommand {
    /// Add a queue: nodes are asked for from now on, whenever jobs are worth them
    #[command(subcommand)]
    Add(NewQueue),
    /// Show what sbatch would say to an allocation of a queue; nothing is asked for
    #[command(subcommand)]
    DryRun(NewQueue),
    /// List queues
    List,
    /// Show a queue, its allocations, and why it asks for what it asks for
    Describe {
        /// The queue
        name: String,
    },
    /// Ask for nothing more; what there is stays until it ends or is idle
    Pause {
        /// The queue
        name: String,
    },
    /// Go on, also with a queue that was stopped after failures
    Resume {
        /// The queue
        name: String,
    },
    /// Remove a queue and give everything back: jobs leave the nodes first
    Remove {
        /// The queue
        name: String,
    },
    /// Print what became of a queue, or what one of its allocations has printed
    Log {
        /// The queue
        name: String,

        /// Number of a job in Slurm: the end of what it has printed
        #[arg(long, value_name = "SLURM_JOB")]
        job: Option<u64>,
    },
}

/// From where nodes come.
#[derive(Debug, Subcommand)]
enum NewQueue {
    /// From Slurm
    Slurm(Box<SlurmArgs>),
}

/// A queue of Slurm jobs.
#[derive(Args, Debug)]
#[command(after_help = "\
Example: pollux alloc add slurm a100 --time-limit 8h --max-nodes 16 -- --partition=gpu --gres=gpu:4 --exclusive")]
struct SlurmArgs {
    /// What it is called
    name: String,

    /// How long each allocation lasts, such as 8h
    #[arg(long, value_name = "TIME", value_parser = pollux_job::seconds)]
    time_limit: u64,

    /// Nodes of each allocation
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = whole(1..=1_024_u32, "expected whole numbers from 1 to 1024"))]
    nodes_per_alloc: u32,

    /// Most allocations that wait in Slurm at once
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = whole(1..=100_u32, "expected whole numbers from 1 to 100"))]
    backlog: u32,

    /// Most nodes, those that wait included [default: as many as jobs are worth]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = whole(1..=1_000_000_u32, "expected whole numbers from 1 to 1000000"))]
    max_nodes: Option<u32>,

    /// Give a node back that has had no work for so long
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = pollux_job::seconds)]
    idle_timeout: u64,

    /// Empty a node so long before its allocation ends
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = pollux_job::seconds)]
    drain_before: u64,

    /// Type of the GPUs or slots of its nodes [default: as the driver calls them, or cpu]
    #[arg(long, value_name = "TYPE")]
    gpu_type: Option<String>,

    /// Slots of each node, where it has no GPUs
    #[arg(long, value_name = "N")]
    #[arg(value_parser = whole(1..=1_024_u32, "expected whole numbers from 1 to 1024"))]
    slots: Option<u32>,

    /// Folder that every node sees, for scripts, the token and logs [default: `slurm` in the scheduler's state folder]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<String>,

    /// What else sbatch is told, such as --partition and --gres
    #[arg(last = true, value_name = "SBATCH_ARGUMENT")]
    sbatch: Vec<String>,
}

/// A rehearsal that went badly.
#[derive(Debug, Error)]
#[error("sbatch would refuse allocations of this queue")]
pub(crate) struct RefusedBySlurm;

impl SlurmArgs {
    fn request(&self) -> AllocationQueueSpec {
        AllocationQueueSpec {
            name: self.name.clone(),
            time_limit_s: self.time_limit,
            nodes_per_alloc: self.nodes_per_alloc,
            backlog: self.backlog,
            max_nodes: self.max_nodes,
            idle_timeout_s: self.idle_timeout,
            drain_before_s: self.drain_before,
            gpu_type: self.gpu_type.clone(),
            slots: self.slots,
            folder: self.folder.clone(),
            sbatch: self.sbatch.clone(),
        }
    }
}

/// Adds, shows and changes queues.
pub(crate) fn run(args: &AllocArgs) -> anyhow::Result<()> {
    let client = args.server.client()?;
    match &args.command {
        AllocCommand::Add(NewQueue::Slurm(queue)) => {
            let added = client.add_allocation_queue(&queue.request())?;
            let said = added.log.last().map_or("", |event| event.text.as_str());
            output::note(&one_line(said));
            Ok(())
        }
        AllocCommand::DryRun(NewQueue::Slurm(queue)) => {
            let rehearsal = client.rehearse_allocation(&queue.request())?;
            output::print(args.output, &rehearsal, |out| write_rehearsal(&rehearsal, out))?;
            if rehearsal.is_accepted { Ok(()) } else { Err(RefusedBySlurm.into()) }
        }
        AllocCommand::List => {
            let list = client.allocation_queues()?;
            output::print(args.output, &list, |out| list_of(&list.queues).write("", out))
        }
        AllocCommand::Describe { name } => {
            let queue = client.allocation_queue(name)?;
            output::print(args.output, &queue, |out| describe(&queue, now_ms(), out))
        }
        AllocCommand::Pause { name } => {
            client.pause_allocation_queue(name)?;
            output::note(&format!("queue {} asks for nothing more until it is resumed", one_line(name)));
            Ok(())
        }
        AllocCommand::Resume { name } => {
            client.resume_allocation_queue(name)?;
            output::note(&format!("queue {} goes on", one_line(name)));
            Ok(())
        }
        AllocCommand::Remove { name } => {
            client.remove_allocation_queue(name)?;
            output::note(&format!("queue {} gives everything back, and is gone then", one_line(name)));
            Ok(())
        }
        AllocCommand::Log { name, job: None } => {
            let log = client.allocation_queue(name)?.log;
            output::print(args.output, &log, |out| {
                log.iter().try_for_each(|event| writeln!(out, "{}  {}", moment(event.at_ms), one_line(&event.text)))
            })
        }
        AllocCommand::Log { name, job } => {
            let printed = client.allocation_output(name, *job)?;
            output::print(args.output, &printed, |out| {
                printed.text.lines().try_for_each(|line| writeln!(out, "{}", one_line(line)))
            })
        }
    }
}

fn write_rehearsal(rehearsal: &AllocationRehearsal, out: &mut dyn Write) -> io::Result<()> {
    let (word, style) = match rehearsal.is_accepted {
        true => ("accepted", AnsiColor::Green.on_default()),
        false => ("refused", AnsiColor::Red.on_default()),
    };
    let quoted = |word: &String| match word.contains([' ', '\'', ';']) {
        true => format!("'{}'", word.replace('\'', r"'\''")),
        false => word.clone(),
    };
    let command: Vec<String> = rehearsal.command.iter().map(quoted).collect();
    writeln!(out, "{}", one_line(&command.join(" ")))?;
    writeln!(out, "{style}{word}{style:#}: {}", one_line(&rehearsal.said))
}

fn style(state: &str) -> Style {
    match state {
        "active" => AnsiColor::Green.on_default(),
        "stopped" => AnsiColor::Red.on_default(),
        _ => AnsiColor::Yellow.on_default(),
    }
}

fn list_of(queues: &[AllocationQueue]) -> Table {
    let mut table = Table::with_headings(&[
        ("queue", Align::Left),
        ("state", Align::Left),
        ("nodes", Align::Right),
        ("joined", Align::Right),
        ("waiting", Align::Right),
        ("most", Align::Right),
        ("gpus", Align::Right),
        ("time limit", Align::Right),
        ("sbatch", Align::Left),
    ]);
    for queue in queues {
        let waiting = queue.allocations.iter().filter(|it| it.stage != "runs").count();
        table.push(vec![
            Cell::plain(one_line(&queue.request.name)),
            Cell::styled(one_line(&queue.state), style(&queue.state)),
            Cell::plain(queue.nodes.to_string()),
            Cell::plain(queue.nodes_joined.to_string()),
            Cell::plain(waiting.to_string()),
            Cell::plain(known(queue.request.max_nodes, |most| most.to_string())),
            Cell::plain(queue.gpus_per_node.to_string()),
            Cell::plain(span(queue.request.time_limit_s as f64)),
            Cell::plain(one_line(&queue.request.sbatch.join(" "))),
        ]);
    }
    table
}

fn describe(queue: &AllocationQueue, now_ms: u64, out: &mut dyn Write) -> io::Result<()> {
    let (bold, style) = (Style::new().bold(), style(&queue.state));
    let (name, state) = (one_line(&queue.request.name), one_line(&queue.state));
    let nodes = count(queue.nodes, "node");
    writeln!(out, "{bold}{name}{bold:#}: {style}{state}{style:#}, {nodes}, {} joined", queue.nodes_joined)?;
    if !queue.standing.is_empty() {
        writeln!(out, "  {}", one_line(&queue.standing))?;
    }
    if !queue.allocations.is_empty() {
        writeln!(out)?;
        allocations(&queue.allocations, now_ms).write("", out)?;
    }
    Ok(())
}

fn allocations(allocations: &[SlurmAllocation], now_ms: u64) -> Table {
    let headings = ["slurm job", "state", "nodes", "machines", "asked", "starts", "ends", ""];
    let mut table = Table::with_headings(&headings.map(|heading| (heading, Align::Left)));
    let ahead = |at_ms: Option<u64>| {
        known(at_ms, |at_ms| match at_ms > now_ms {
            true => format!("in {}", span(seconds_between(now_ms, at_ms))),
            false => format!("{} ago", span(seconds_between(at_ms, now_ms))),
        })
    };
    for allocation in allocations {
        let remark = match &allocation.given_up {
            Some(why) => format!("given back: {why}"),
            None if allocation.stage == "waits" => allocation.reason.clone(),
            None => String::new(),
        };
        let state = if allocation.state.is_empty() { &allocation.stage } else { &allocation.state };
        table.push(vec![
            Cell::plain(known(allocation.job, |job| job.to_string())),
            Cell::plain(one_line(state)),
            Cell::plain(one_line(&allocation.hosts)),
            Cell::plain(one_line(&allocation.machines.join(", "))),
            Cell::plain(ahead(Some(allocation.asked_ms))),
            Cell::plain(ahead(allocation.start_ms)),
            Cell::plain(ahead(allocation.end_ms)),
            Cell::plain(one_line(&remark)),
        ]);
    }
    table
}
