use std::io::Write;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::server_args::ServerArgs;
use super::text::span;
use crate::output::{self, OutputFormat, one_line};

/// What `pollux token` takes.
#[derive(Args, Debug)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    command: Option<TokenCommand>,

    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table, global = true)]
    output: OutputFormat,

    #[command(flatten)]
    server: ServerArgs,
}

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Print the token that commands send (the default)
    Show,
    /// Create a token; it is shown only once
    Create {
        /// Who or what it is for
        #[arg(required_unless_present = "node", conflicts_with = "node")]
        label: Option<String>,

        /// A token that only lets machines join, by `pollux node --join`
        #[arg(long)]
        node: bool,

        /// How long machines may join with it, such as 30m or 2d
        #[arg(long, value_name = "TIME", requires = "node", default_value = "1h", value_parser = pollux_job::seconds)]
        expires: u64,
    },
    /// List tokens by their labels
    List,
    /// Revoke a token
    Revoke {
        /// Who or what it was for
        label: String,
    },
}

/// The token in use.
#[derive(Serialize)]
struct Shown {
    token: String,
}

/// Shows, makes and revokes tokens.
pub(crate) fn run(args: &TokenArgs) -> anyhow::Result<()> {
    match args.command.as_ref().unwrap_or(&TokenCommand::Show) {
        TokenCommand::Show => {
            let shown = Shown { token: args.server.connection()?.token };
            output::print(args.output, &shown, |out| writeln!(out, "{}", shown.token))
        }
        TokenCommand::Create { label: None, expires, .. } => {
            let issued = args.server.client()?.issue_node_token(*expires)?;
            let lifetime = span(*expires as f64);
            output::note(&format!(
                "machines may join with this token for {lifetime}; it is not shown again: put it into a file for \
                 `pollux node --join URL --token-file FILE`"
            ));
            output::print(args.output, &issued, |out| writeln!(out, "{}", issued.token))
        }
        TokenCommand::Create { label: Some(label), .. } => {
            let issued = args.server.client()?.issue_token(label)?;
            output::note(&"this token gives full access and is not shown again; set it as POLLUX_TOKEN");
            output::print(args.output, &issued, |out| writeln!(out, "{}", issued.token))
        }
        TokenCommand::List => {
            let list = args.server.client()?.tokens()?;
            output::print(args.output, &list, |out| {
                list.labels.iter().try_for_each(|label| writeln!(out, "{}", one_line(label)))
            })
        }
        TokenCommand::Revoke { label } => {
            args.server.client()?.revoke_token(label)?;
            output::note(&format!("the token {label} is revoked"));
            Ok(())
        }
    }
}
