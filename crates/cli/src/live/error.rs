use std::path::PathBuf;

use pollux_job::Phase;
use thiserror::Error;

use super::text::ids;

/// What came of a command that speaks to a scheduler, besides what the scheduler says.
#[derive(Debug, Error)]
pub(crate) enum LiveError {
    /// Nobody knows where state is kept.
    #[error("neither XDG_STATE_HOME nor HOME is set; expected --state DIR")]
    NoStateFolder,
    /// A job's file that cannot be used.
    #[error("{}{}: {reason}", .file.display(), .line.map(|line| format!(", line {line}")).unwrap_or_default())]
    JobFile {
        /// As given.
        file: PathBuf,
        /// Where, if the parser knows.
        line: Option<usize>,
        /// What is wrong, then what would be accepted.
        reason: String,
    },
    /// Nothing to run.
    #[error("no command; expected `pollux submit -- PROGRAM ARGUMENT...`, or -f FILE with a command")]
    NoCommand,
    /// A job that could be submitted, of which nobody knows how it trains.
    #[error("a new job that trains like nothing; expected --like JOB or --application NAME with it")]
    NoLikeness,
    /// A folder whose name cannot be sent.
    #[error("working folder {}: its name is not UTF-8; expected one whose name is", .0.display())]
    WorkingDir(PathBuf),
    /// A name that is no job's.
    #[error("no job is called {0:?}; `pollux ps -a` lists jobs")]
    UnknownJob(String),
    /// A name of several jobs.
    #[error("{name:?} is the name of jobs {}; expected one of these numbers", ids(.jobs))]
    SeveralJobs {
        /// As given.
        name: String,
        /// All that are live.
        jobs: Vec<u64>,
    },
    /// A job that was watched did not train to the end.
    #[error(
        "job {id} {}{}; `pollux logs {id}` shows what it wrote",
        .phase.word(),
        .reason.as_ref().map(|it| format!(": {it}")).unwrap_or_default()
    )]
    NotTrained {
        /// Which.
        id: u64,
        /// How it ended.
        phase: Phase,
        /// Why.
        reason: Option<String>,
    },
    /// The user has seen enough of a job.
    #[error("interrupted, and job {id} runs on: `pollux logs -f {id}` shows it again, `pollux cancel {id}` ends it")]
    Interrupted {
        /// Which.
        id: u64,
    },
    /// The server ended while it was listened to.
    #[error("the server at {url} has shut down, and jobs train on: start it again with `pollux up`")]
    ShutDown {
        /// Where it was.
        url: String,
    },
    /// A machine on which something does not work.
    #[error("{failed}: not as it should be, see above")]
    Unwell {
        /// What.
        failed: String,
    },
    /// A live view without a terminal.
    #[error("stdout is no terminal; expected `pollux top --once`")]
    NoTerminal,
}

impl LiveError {
    /// What the command ends with: 2 for what has to be asked for differently, 130 as shells say it of an interruption.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::NoStateFolder | Self::JobFile { .. } | Self::NoCommand | Self::WorkingDir(_) => 2,
            Self::NoLikeness | Self::UnknownJob(_) | Self::SeveralJobs { .. } | Self::NoTerminal => 2,
            Self::NotTrained { .. } | Self::ShutDown { .. } | Self::Unwell { .. } => 1,
            Self::Interrupted { .. } => 130,
        }
    }
}
