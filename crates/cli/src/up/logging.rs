//! The log of `pollux up`: on stderr, as text for people or as JSON for programs.

use std::any::Any;
use std::io;
use std::panic;
use std::thread;
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;
use tracing::{error, warn};
use tracing_appender::non_blocking::WorkerGuard;

/// How soon it is told that lines were dropped.
const DROPPED_INTERVAL: Duration = Duration::from_secs(10);

/// What is logged, and how.
#[derive(Args, Debug)]
pub(crate) struct LogArgs {
    /// Log level on stderr
    #[arg(long, value_name = "LEVEL", env = "POLLUX_LOG", default_value = "info")]
    log_level: LogLevel,

    /// Log as text for people or as JSON, one object a line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl LogArgs {
    pub(crate) const fn is_json(&self) -> bool {
        matches!(self.log_format, LogFormat::Json)
    }
}

/// Everything is logged from now on, until this is dropped. A thread of its own writes: a terminal that is stopped or
/// a pipe that nobody reads must not hold up the scheduler, and then loses lines.
pub(crate) fn start(args: &LogArgs) -> WorkerGuard {
    let level = match args.log_level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let (writer, guard) = tracing_appender::non_blocking(io::stderr());
    let dropped = writer.error_counter();
    // Whoever closes stderr wants no log, and no complaints about that either.
    let lines = tracing_subscriber::fmt().with_max_level(level).with_writer(writer).log_internal_errors(false);
    match args.log_format {
        LogFormat::Text => {
            let colours = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
            lines.with_target(false).with_ansi(colours).init();
        }
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(tracing::field::display);
        error!(thread = thread::current().name(), location, "panic: {}", message(panic.payload()));
    }));
    let watch = move || {
        let mut told = 0;
        loop {
            thread::sleep(DROPPED_INTERVAL);
            let lines = dropped.dropped_lines();
            if lines > told {
                warn!(lines = lines - told, "lines of this log were dropped: nobody read them in time");
                told = lines;
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("log".to_owned()).spawn(watch) {
        warn!(%error, "dropped lines of this log will not be told of");
    }
    guard
}

/// What somebody panicked with.
fn message(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("of an unknown kind")
}
