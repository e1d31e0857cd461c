use std::io::{self, IsTerminal, Read, Write};

use clap::Args;
use pollux_client::{Client, ClientError, LogQuery};

use super::LiveError;
use super::harmless::Harmless;
use super::lookup::job_id;
use super::server_args::ServerArgs;
use super::text::has_ended;
use crate::usage::whole;

/// What `pollux logs` takes.
#[derive(Args, Debug)]
#[command(after_help = "To a terminal only text and colours are written; to a pipe or a file every byte as it is.")]
pub(crate) struct LogsArgs {
    /// A job, by number or name
    job: String,

    /// Go on until the job has ended
    #[arg(short, long)]
    follow: bool,

    /// Of one replica only, by number; otherwise each line begins with it
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(0..=u64::MAX, NUMBERS))]
    replica: Option<u64>,

    /// So many of the last lines only
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(0..=u64::MAX, NUMBERS))]
    tail: Option<u64>,

    #[command(flatten)]
    server: ServerArgs,
}

const NUMBERS: &str = "accepted are whole numbers from 0";

/// Prints what a job writes.
pub(crate) fn run(args: &LogsArgs) -> anyhow::Result<()> {
    let client = args.server.client()?;
    let id = job_id(&client, &args.job)?;
    let query = LogQuery { replica: args.replica, tail: args.tail, follow: args.follow };
    let mut logs = client.logs(id, query)?;
    let mut screen = Screen::open();
    let mut bytes = vec![0; 64 * 1024];
    loop {
        match logs.read(&mut bytes) {
            Ok(0) => break,
            Ok(length) => screen.show(&bytes[..length])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(client.broken_stream(&error).into()),
        }
    }
    screen.finish()?;
    if args.follow { check_ended(&client, id) } else { Ok(()) }
}

/// Logs that are followed end with their job. If that goes on, it is the server that has ended.
fn check_ended(client: &Client, id: u64) -> anyhow::Result<()> {
    match client.job(id) {
        Ok(detail) if has_ended(detail.job.phase) => Ok(()),
        Ok(_) | Err(ClientError::NoServer { .. } | ClientError::Away { .. }) => {
            Err(LiveError::ShutDown { url: client.url().to_owned() }.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Where logs are shown: a terminal, which must come to no harm, or anything else, which gets the bytes.
pub(super) enum Screen {
    Terminal(Harmless<anstream::AutoStream<io::Stdout>>),
    Bytes(io::Stdout),
}

impl Screen {
    pub(super) fn open() -> Self {
        let stdout = io::stdout();
        if stdout.is_terminal() { Self::Terminal(Harmless::new(anstream::stdout())) } else { Self::Bytes(stdout) }
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
