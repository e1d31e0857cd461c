use std::io::{self, Write};

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

/// What `pollux completions` takes.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints what makes a shell complete the arguments of `pollux`.
pub(crate) fn run(args: &CompletionsArgs, pollux: &mut Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, pollux, "pollux", &mut script);
    io::stdout().lock().write_all(&script).context("cannot write to stdout")
}
