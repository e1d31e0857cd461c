//! `pollux node`: this machine's GPUs for a scheduler elsewhere, until a signal ends it, and replicas run on without it, or
//! until the machine is given back.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, fs};

use anyhow::Context;
use clap::Args;
use pollux_backend_local::{LocalSettings, LogLimits, MachineIdentity, NodeLayout};
use pollux_backend_remote::{Agent, AgentEnd, AgentError, AgentSettings, Lifetime, Scheduler};
use pollux_job::AmountError;
use rustix::system::uname;
use tracing::info;

use crate::live::StateArgs;
use crate::up::{LogArgs, Signals, start_log};
use crate::usage::whole;

/// What a replica may take to end that the scheduler does not know.
const GRACE: Duration = Duration::from_secs(30);

/// What `pollux node` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Ctrl-C or SIGTERM ends this program, not the jobs: they train on, and the next `pollux node` on this machine carries on with
them. `pollux nodes remove NAME` ends them and takes the machine out of the cluster. SIGUSR1 empties the machine: its jobs go
on elsewhere, and this program ends once nothing runs here.")]
pub(crate) struct NodeArgs {
    /// Address of the scheduler: https://HOST:PORT, or http:// on the same machine
    #[arg(long, value_name = "URL")]
    join: String,

    /// File with the token that `pollux token create --node` printed; needed once
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Name of this machine [default: its host name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Host under which other machines reach this one [default: its address on the way to the scheduler]
    #[arg(long, value_name = "HOST")]
    address: Option<String>,

    /// Slots without GPUs [default: the GPUs of this machine, or a slot for each core]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole(1..=1_024_u32, "expected whole numbers from 1 to 1024"))]
    slots: Option<u32>,

    /// Type of its GPUs or slots [default: as the driver calls them, or cpu]
    #[arg(long, value_name = "TYPE")]
    gpu_type: Option<String>,

    /// Certificate authorities that vouch for the scheduler: a PEM file [default: the certificate that the token names]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Where jobs save checkpoints on this machine; the scheduler copies them, and hands them on to other machines [default:
    /// the scheduler's folder where this machine sees it, else `checkpoints` in its state folder]
    #[arg(long, value_name = "FOLDER")]
    checkpoint_dir: Option<PathBuf>,

    #[command(flatten)]
    lifetime: LifetimeArgs,

    #[command(flatten)]
    state: StateArgs,

    #[command(flatten)]
    log: LogArgs,
}

/// How long the machine is there.
#[derive(Args, Debug)]
struct LifetimeArgs {
    /// The machine is gone after so long, such as 8h or 90m: in time before that its jobs go on elsewhere, and it leaves
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    ends_in: Option<Duration>,

    /// The same as a moment, such as 2027-01-31T18:00:00Z or, in seconds since 1970, 1801418400
    #[arg(long, value_name = "MOMENT", conflicts_with = "ends_in", value_parser = moment)]
    ends_at: Option<SystemTime>,

    /// So long before its end the machine is emptied
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    drain_before: Duration,

    /// Leave once nothing has run here for so long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    idle_timeout: Option<Duration>,
}

impl LifetimeArgs {
    fn lifetime(&self) -> Lifetime {
        // One that is past has ended.
        let until = |at: SystemTime| at.duration_since(SystemTime::now()).unwrap_or_default();
        Lifetime {
            ends_in: self.ends_in.or_else(|| self.ends_at.map(until)),
            drain_before: self.drain_before,
            idle_timeout: self.idle_timeout,
        }
    }
}

fn duration(text: &str) -> Result<Duration, AmountError> {
    pollux_job::seconds(text).map(Duration::from_secs)
}

/// Seconds since 1970, or a date and time that say how far they are from UTC.
fn moment(text: &str) -> Result<SystemTime, &'static str> {
    let since_1970 = match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().ok().map(Duration::from_secs),
        false => text
            .parse::<jiff::Timestamp>()
            .ok()
            .and_then(|at| at.as_millisecond().try_into().ok())
            .map(Duration::from_millis),
    };
    since_1970
        .and_then(|since| UNIX_EPOCH.checked_add(since))
        .ok_or("expected seconds since 1970, or a moment such as 2027-01-31T18:00:00Z or 2027-01-31T18:00:00+01:00")
}

/// Works for the scheduler until a signal comes, or the machine leaves.
pub(crate) fn run(args: &NodeArgs) -> anyhow::Result<()> {
    let _log = start_log(&args.log);
    pollux_backend_local::raise_files_max();
    let host = uname().nodename().to_string_lossy().into_owned();
    let (token, pin) = args.token_file.as_deref().map(token).transpose()?.unzip();
    let settings = AgentSettings {
        // Several machines may have one home folder.
        state_dir: args.state.folder()?.join(format!("node-{host}")),
        scheduler: Scheduler::new(&args.join, pin.flatten(), args.ca.as_deref())?,
        token,
        name: args.name.clone().unwrap_or(host),
        address: args.address.clone(),
        local: LocalSettings {
            nodes: args.slots.map_or(NodeLayout::Gpus, NodeLayout::Slots),
            program: env::current_exe().context("cannot find this program")?,
            grace: GRACE,
            log: LogLimits::default(),
            checkpoint_dir: args.checkpoint_dir.clone(),
            identity: MachineIdentity { gpu_type: args.gpu_type.clone(), ..MachineIdentity::default() },
        },
        lifetime: args.lifetime.lifetime(),
    };
    let (name, state_dir) = (settings.name.clone(), settings.state_dir.clone());
    let signals = Signals::listen().context("cannot listen for signals")?;
    let agent = Agent::open(settings)?;
    let stopper = agent.stopper();
    signals.stop(move || stopper.stop()).context("cannot listen for signals")?;
    let drainer = agent.drainer();
    Signals::on_usr1(move || drainer.drain()).context("cannot listen for signals")?;
    let gpus: u32 = agent.local().nodes().iter().map(|node| node.slots).sum();
    let end = agent.run(|| {
        let (gpus, join, state) = (crate::live::count(gpus, "slot"), &args.join, state_dir.display());
        // Nobody needs to listen for it to work.
        let _ = writeln!(io::stdout(), "{name} has joined {join} with {gpus}; its state is in {state}");
    })?;
    match end {
        AgentEnd::Stopped => info!("ended; jobs train on, and the next `pollux node` carries on with them"),
        AgentEnd::Left => info!("this machine has left the cluster; nothing runs here any more"),
    }
    Ok(())
}

/// The token of a file, and the fingerprint of the scheduler's certificate behind its dot.
fn token(file: &Path) -> anyhow::Result<(String, Option<String>)> {
    let text = fs::read_to_string(file).with_context(|| format!("--token-file {}", file.display()))?;
    let (token, pin) = match text.trim().split_once('.') {
        Some((token, pin)) => (token, Some(pin)),
        None => (text.trim(), None),
    };
    let is_hex = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex(token) && pin.is_none_or(is_hex) {
        return Ok((token.to_owned(), pin.map(str::to_owned)));
    }
    Err(AgentError::Token { file: file.to_owned() }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_seconds_since_1970_or_a_moment_of_some_time_zone() {
        let at = Ok(UNIX_EPOCH + Duration::from_secs(1_801_418_400));
        for text in ["1801418400", "2027-01-31T18:00:00Z", "2027-01-31T19:00:00+01:00", "2027-01-31 18:00:00Z"] {
            assert_eq!(moment(text), at, "{text}");
        }
        for text in ["", "8h", "-5", "1801418400.5", "2027-01-31", "2027-01-31T18:00:00", "99999999999999999999"] {
            assert!(moment(text).is_err(), "{text}");
        }
    }
}
