//! Starts, shows and removes test clusters by hand.

mod bench;
mod demo;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use pollux_testbed::{Cluster, NodeSettings, Tier, prepare, serve};

/// A real Kubernetes cluster on this machine, with GPUs that are made up.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Install what clusters with nodes need (as other users: the control plane), and say what is missing
    Prepare,
    /// Start a cluster and leave it running
    Up {
        /// How it is called
        #[arg(default_value = "default")]
        name: String,
        /// How many real nodes it has; they need root, and 0 needs nothing
        #[arg(long, default_value_t = 3)]
        nodes: usize,
        /// How many GPUs each node has
        #[arg(long, default_value_t = 4)]
        gpus: u32,
        /// How many more nodes KWOK plays
        #[arg(long, default_value_t = 0)]
        fake_nodes: u32,
    },
    /// Print which clusters run and what their nodes are
    Status,
    /// Let six trainings share the GPUs of a cluster, kill the operator in the middle, and remove everything again
    Demo,
    /// Measure what an operator bears on a cluster whose nodes and jobs KWOK plays
    Bench(bench::BenchArgs),
    /// Be a registry with one image, for tests
    #[command(hide = true)]
    ServeImage {
        /// Where the image is
        folder: PathBuf,
        /// How long each of its parts takes
        seconds: u32,
    },
    /// End a cluster and remove all that is left of it
    Down {
        /// How it is called
        #[arg(default_value = "default")]
        name: String,
    },
}

fn main() -> ExitCode {
    match act(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn act(action: Action) -> Result<()> {
    let mut out = io::stdout();
    match action {
        Action::Prepare => {
            prepare(Tier::Nodes)?;
        }
        Action::Up { name, nodes, gpus, fake_nodes } => {
            let settings = NodeSettings { gpus, ..NodeSettings::default() };
            let cluster = match nodes {
                0 => Cluster::without_nodes(Some(&name))?,
                _ => Cluster::with_nodes(Some(&name), &vec![settings.clone(); nodes])?,
            };
            if fake_nodes > 0 {
                cluster.add_fake_nodes(fake_nodes, &settings)?;
            }
            writeln!(out, "export KUBECONFIG={}", cluster.kubeconfig().display())?;
            writeln!(out, "export PATH={}:$PATH", cluster.programs().display())?;
            cluster.keep()?;
        }
        Action::Status => {
            for name in Cluster::names()? {
                let cluster = Cluster::open(&name)?;
                writeln!(out, "{name}: {}", cluster.kubeconfig().display())?;
                writeln!(out, "{}", cluster.kubectl(&["get", "nodes"]).unwrap_or_else(|error| error.to_string()))?;
            }
        }
        Action::Demo => demo::demo()?,
        Action::ServeImage { folder, seconds } => serve(&folder, seconds)?,
        Action::Bench(args) => bench::bench(&args)?,
        Action::Down { name } => Cluster::remove(&name)?,
    }
    Ok(())
}

fn say(what: &str) -> Result<()> {
    writeln!(io::stdout(), "{what}")?;
    Ok(())
}
