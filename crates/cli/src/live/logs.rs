use std::io::{self, IsTerminal, Read, Write};

use clap::Args;
use pollux_client::{Client, LogQuery};

use super::log_lines;
use super::lookup::job_id;
use super::sanitizer::TerminalSanitizer;
use super::server_args::ServerArgs;
use crate::output;
use crate::usage::whole;

/// What `pollux logs` takes.
#[derive(Args, Debug)]
#[command(after_help = "To a terminal only text and colours are written; to a pipe or a file all of it,
with a replacement character for what is not UTF-8.")]
pub(crate) struct LogsArgs {
    /// A job, by number or name
    job: String,

    /// Keep printing until the job ends
    #[arg(short, long)]
    follow: bool,

    /// Only the logs of this replica; otherwise each line begins with its number
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(0..=u64::MAX, NUMBERS))]
    replica: Option<u64>,

    /// Only the last N lines
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(0..=u64::MAX, NUMBERS))]
    tail: Option<u64>,

    #[command(flatten)]
    pub(super) server: ServerArgs,
}

const NUMBERS: &str = "expected whole numbers from 0";

/// Prints what a job writes.
pub(crate) fn run(args: &LogsArgs) -> anyhow::Result<()> {
    let client = args.server.client()?;
    let id = job_id(&client, &args.job)?;
    let query = LogQuery { replica: args.replica, tail: args.tail };
    let mut screen = Screen::open();
    let mut is_empty = true;
    let mut show = |bytes: &[u8]| {
        is_empty &= bytes.is_empty();
        screen.show(bytes)
    };
    if args.follow {
        log_lines::follow(&client, id, query, &mut |lines| Ok(show(&lines)?))?;
    } else {
        copy(&client, &mut client.logs(id, query)?, &mut show)?;
    }
    screen.finish()?;
    if is_empty && args.tail != Some(0) {
        output::note(&format!("job {id} has no logs; see `pollux describe {id}`"));
    }
    Ok(())
}

fn copy(client: &Client, logs: &mut dyn Read, show: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> anyhow::Result<()> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        match logs.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(length) => show(&bytes[..length])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(client.broken_stream(&error).into()),
        }
    }
}

/// Where logs are shown: a terminal, which must come to no harm, or anything else, which gets the bytes.
pub(super) enum Screen {
    Terminal(Box<TerminalSanitizer<anstream::AutoStream<io::Stdout>>>),
    Bytes(io::Stdout),
}

impl Screen {
    pub(super) fn open() -> Self {
        let stdout = io::stdout();
        if stdout.is_terminal() {
            Self::Terminal(Box::new(TerminalSanitizer::new(anstream::stdout())))
        } else {
            Self::Bytes(stdout)
        }
    }

    /// At once: whoever follows waits for it.
    pub(super) fn show(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Terminal(out) => out.write_all(bytes).and_then(|()| out.flush()),
            Self::Bytes(out) => out.write_all(bytes).and_then(|()| out.flush()),
        }
    }

    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Self::Terminal(out) => out.finish(),
            Self::Bytes(_) => Ok(()),
        }
    }
}
