//! How reports and messages reach the user: data to stdout, talk to stderr.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Context;
use clap::ValueEnum;
use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;

/// How a command prints what it returns.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Aligned text for people.
    Table,
    /// One JSON object for programs.
    Json,
}

/// Prints a report to stdout, with colours only where they can be seen; `write_text` writes it for people.
pub(crate) fn print(
    format: OutputFormat,
    report: &impl Serialize,
    write_text: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut text = Vec::new();
    match format {
        OutputFormat::Table => write_text(&mut text)?,
        OutputFormat::Json => {
            serde_json::to_writer_pretty(&mut text, report)?;
            text.push(b'\n');
        }
    }
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(&text).and_then(|()| stdout.flush()).context("cannot write to stdout")
}

/// Tells the user of something they should know about the report.
pub(crate) fn note(note: &impl Display) {
    talk(AnsiColor::Cyan.on_default(), "note", note);
}

/// Tells the user what went wrong, in one line.
pub(crate) fn complain(error: &anyhow::Error) {
    talk(AnsiColor::Red.on_default().bold(), "error", &format!("{error:#}"));
}

fn talk(style: Style, kind: &str, message: &impl Display) {
    // Without a stderr there is nobody to tell, and nothing else to do about it.
    let _ = writeln!(anstream::stderr(), "{style}{kind}{style:#}: {message}");
}
