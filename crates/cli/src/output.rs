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

/// How a command prints what has a number.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ListFormat {
    /// Aligned text for people.
    Table,
    /// One JSON object for programs.
    Json,
    /// Numbers only, one a line, for other commands.
    Id,
}

/// Prints as [`print()`] does, or only numbers.
pub(crate) fn print_list(
    format: ListFormat,
    report: &impl Serialize,
    ids: impl Iterator<Item = u64>,
    write_text: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
) -> anyhow::Result<()> {
    match format {
        ListFormat::Table => print(OutputFormat::Table, report, write_text),
        ListFormat::Json => print(OutputFormat::Json, report, write_text),
        ListFormat::Id => {
            print(OutputFormat::Table, report, |out| ids.into_iter().try_for_each(|id| writeln!(out, "{id}")))
        }
    }
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
pub(crate) fn complain(mistake: &impl Display) {
    talk(AnsiColor::Red.on_default().bold(), "error", mistake);
}

/// The text with those characters written out that control a terminal, turn the direction of a line around or take no
/// room in it: names may hold them.
pub(crate) fn one_line(text: &str) -> String {
    let is_invisible = |char: char| matches!(char, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    let mut line = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() || is_invisible(char) {
            line.extend(char.escape_default());
        } else {
            line.push(char);
        }
    }
    line
}

fn talk(style: Style, kind: &str, message: &impl Display) {
    let message = one_line(&message.to_string());
    // Without a stderr there is nobody to tell, and nothing else to do about it.
    let _ = writeln!(anstream::stderr(), "{style}{kind}{style:#}: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out_and_other_text_stays() {
        assert_eq!(one_line("a\nb\r\u{1b}[31m\tc"), "a\\nb\\r\\u{1b}[31m\\tc");
        assert_eq!(one_line("\\ \"ä\" µ"), "\\ \"ä\" µ");
    }
}
