use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::server_args::ServerArgs;
use crate::output::{self, OutputFormat};

const FILE: &str = "dashboard.html";
/// For a browser to start and to read the file; what opens it does not say when that is done.
const READING: Duration = Duration::from_secs(5);

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
    pub(super) server: ServerArgs,
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
        if args.server.is_tunnel() {
            output::note(&"this link shows what you may see, until this command ends: press Ctrl-C to end it");
        } else {
            output::note(&"this link gives full access: do not share it");
        }
        output::print(args.output, &link, |out| writeln!(out, "{}", link.url))?;
        return serve_on(args);
    }
    // A scheduler elsewhere has no folder here.
    let scratch = args.server.is_tunnel().then(tempfile::tempdir).transpose()?;
    let file = scratch.as_ref().map_or_else(|| args.server.folder(), |it| Ok(it.path().to_owned()))?.join(FILE);
    let page = LinkFile::write(&file, &link.url).with_context(|| file.display().to_string())?;
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let status = Command::new(opener).arg(&page.0).stdin(Stdio::null()).status().with_context(|| opener.to_owned())?;
    anyhow::ensure!(status.success(), "{opener} could not open {}: `pollux dashboard` prints the link", file.display());
    thread::sleep(READING);
    drop(page);
    serve_on(args)
}

/// Keeps the way to an operator open until the user ends it.
fn serve_on(args: &DashboardArgs) -> anyhow::Result<()> {
    if args.server.is_tunnel() {
        io::stdout().flush()?;
        loop {
            thread::park();
        }
    }
    Ok(())
}

/// A page that leads to the link, for as long as this lives. Everybody on this machine sees the arguments of a program,
/// so what opens a browser is given a file that nobody else may read.
struct LinkFile(PathBuf);

impl LinkFile {
    fn write(file: &Path, url: &str) -> io::Result<Self> {
        // One that is there already, from a run that was cut short, may be anybody's to read.
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        let page = Self(file.to_owned());
        writeln!(opened, "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={url}\">")?;
        Ok(page)
    }
}

impl Drop for LinkFile {
    fn drop(&mut self) {
        // Whoever removed it before has done the same.
        drop(fs::remove_file(&self.0));
    }
}
