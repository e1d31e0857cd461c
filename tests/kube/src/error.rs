//! What can go wrong while a cluster is started, changed or removed.

use std::io;
use std::path::Path;
use std::process::{Command, Output};

use thiserror::Error;

/// Why something was not done.
#[derive(Debug, Error)]
pub enum TestbedError {
    /// No such cluster can run on this machine; tests that need one are skipped.
    #[error("{0}")]
    Unavailable(String),
    /// A file or folder could not be used.
    #[error("{what}: {source}")]
    File {
        /// Its path, or what was done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A program failed.
    #[error("{command} failed: {output}")]
    Command {
        /// The program and its arguments.
        command: String,
        /// What it wrote, or why it was not started.
        output: String,
    },
    /// Something that must happen did not.
    #[error("{what}: not within {limit_s} s: {last}")]
    Late {
        /// What was waited for.
        what: String,
        /// For how long.
        limit_s: u64,
        /// What was seen instead.
        last: String,
    },
    /// A name that no cluster or node has, or one that is taken.
    #[error("{0}")]
    Name(String),
    /// A program that would not run in an image without libraries.
    #[error("{0}: expected a static executable (-C target-feature=+crt-static)")]
    NotStatic(String),
    /// An epoch that did not use every sample exactly once.
    #[error("{0}: expected every sample of an epoch once")]
    Account(String),
    /// A certificate could not be made.
    #[error(transparent)]
    Certificate(#[from] rcgen::Error),
}

/// Names the file in an error.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> TestbedError {
    let what = path.display().to_string();
    move |source| TestbedError::File { what, source }
}

/// Runs a program to its end and returns what it wrote to its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String, TestbedError> {
    let result = command.output();
    let failure = |output: String| TestbedError::Command { command: line(command), output };
    match result {
        Ok(Output { status, stdout, .. }) if status.success() => Ok(String::from_utf8_lossy(&stdout).into_owned()),
        Ok(Output { status, stdout, stderr }) => {
            let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
            Err(failure(format!("{} ({status})", text.trim())))
        }
        Err(error) => Err(failure(error.to_string())),
    }
}

fn line(command: &Command) -> String {
    // The text of a script is told by its first line.
    let word = |word: &std::ffi::OsStr| word.to_string_lossy().lines().next().unwrap_or_default().to_owned();
    std::iter::once(command.get_program()).chain(command.get_args()).map(word).collect::<Vec<_>>().join(" ")
}
