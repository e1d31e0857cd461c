use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::server_args::ServerArgs;
use crate::output::{self, OutputFormat};

const FILE: &str = "dashboard.html";

/// What `pollux dashboard` takes.
#[derive(Args, Debug)]
pub(crate) struct DashboardArgs {
    /// Open it in the browser of this machine instead
    #[arg(long)]
    open: bool,

    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    output: OutputFormat,

    #[command(flatten)]
    server: ServerArgs,
}

/// Where the dashboard is, with what opens it.
#[derive(Serialize)]
struct Link {
    url: String,
}

/// Prints or opens the address of the dashboard. What follows the `#` is never sent to a server, and the page takes it
/// out of the address.
pub(crate) fn run(args: &DashboardArgs) -> anyhow::Result<()> {
    let connection = args.server.connection()?;
    let link = Link { url: format!("{}/#token={}", connection.url.trim_end_matches('/'), connection.token) };
    if !args.open {
        output::note(&"this link opens everything: give it to nobody");
        return output::print(args.output, &link, |out| writeln!(out, "{}", link.url));
    }
    // Everybody on this machine sees the arguments of a program, so the link goes into a file that nobody else reads.
    let file = args.server.folder()?.join(FILE);
    let page = format!("<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={}\">\n", link.url);
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&file);
    opened.and_then(|mut file| file.write_all(page.as_bytes())).with_context(|| file.display().to_string())?;
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let status = Command::new(opener).arg(&file).stdin(Stdio::null()).status().with_context(|| opener.to_owned())?;
    anyhow::ensure!(status.success(), "{opener} could not open {}: `pollux dashboard` prints the link", file.display());
    Ok(())
}
