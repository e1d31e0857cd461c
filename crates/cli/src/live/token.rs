use std::io::{self, Write};

use clap::{Args, Subcommand};
use pollux_api::{Role, Token, TokenRequest};
use serde::Serialize;

use super::server_args::ServerArgs;
use super::text::{moment, now_ms, seconds_between, span};
use crate::output::{self, OutputFormat, one_line};
use crate::table::{Align, Cell, Table};

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
        /// The user whom it is for, who owns the jobs that are submitted with it
        #[arg(value_name = "NAME", required_unless_present = "node", conflicts_with = "node")]
        label: Option<String>,

        /// What the user may do: viewer (look), member (also submit and change own jobs) or admin (everything)
        #[arg(long, value_name = "ROLE", default_value = "member", conflicts_with = "node", value_parser = role)]
        role: Role,

        /// A token that only lets machines join, by `pollux node --join`
        #[arg(long)]
        node: bool,

        /// For how long it is good, such as 12h or 30d [default: until it is revoked; with --node 1h]
        #[arg(long, value_name = "TIME", value_parser = pollux_job::seconds)]
        expires: Option<u64>,
    },
    /// List users with tokens, their roles, and when these end and were used
    List,
    /// Revoke a user's token
    Revoke {
        /// Whose it is
        #[arg(value_name = "NAME")]
        label: String,
    },
}

/// How long machines may join with a token, unless told.
const JOIN_S: u64 = 3_600;

fn role(word: &str) -> Result<Role, &'static str> {
    Role::of_word(word).ok_or("expected admin, member or viewer")
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
            let expires = expires.unwrap_or(JOIN_S);
            let issued = args.server.client()?.issue_node_token(expires)?;
            let lifetime = span(expires as f64);
            output::note(&format!(
                "machines may join with this token for {lifetime}; it is not shown again: put it into a file for \
                 `pollux node --join URL --token-file FILE`"
            ));
            output::print(args.output, &issued, |out| writeln!(out, "{}", issued.token))
        }
        TokenCommand::Create { label: Some(label), role, expires, .. } => {
            let request = TokenRequest { label: label.clone(), role: *role, expires_s: *expires };
            let issued = args.server.client()?.issue_token(&request)?;
            let may = match role {
                Role::Viewer => "lets its holder look at jobs",
                Role::Member => "lets its holder submit jobs and change those",
                Role::Admin => "gives full access",
            };
            let until = expires.map(|expires| format!(" for {}", span(expires as f64))).unwrap_or_default();
            output::note(&format!("this token {may}{until} and is not shown again; set it as POLLUX_TOKEN"));
            output::print(args.output, &issued, |out| writeln!(out, "{}", issued.token))
        }
        TokenCommand::List => {
            let list = args.server.client()?.tokens()?;
            output::print(args.output, &list, |out| write_table(&list.tokens, now_ms(), out))
        }
        TokenCommand::Revoke { label } => {
            args.server.client()?.revoke_token(label)?;
            output::note(&format!("the token of {} is revoked; jobs of this user go on", one_line(label)));
            Ok(())
        }
    }
}

fn write_table(tokens: &[Token], now_ms: u64, out: &mut dyn Write) -> io::Result<()> {
    let headings = ["name", "role", "expires", "last used"].map(|heading| (heading, Align::Left));
    let mut table = Table::with_headings(&headings);
    for token in tokens {
        let expires = match token.expires_ms {
            None => "never".to_owned(),
            Some(at) if at <= now_ms => "expired".to_owned(),
            Some(at) => format!("in {}", span(seconds_between(now_ms, at))),
        };
        let last_used = token.last_used_ms.map_or_else(|| "never".to_owned(), |at| format!("{} UTC", moment(at)));
        let cells = [one_line(&token.label), token.role.to_string(), expires, last_used];
        table.push(cells.map(Cell::plain).into());
    }
    table.write("", out)
}
