use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use crate::error::TrainerError;
use crate::samples::Tally;

/// A file with a line for every finished epoch: its number from 1, its samples and their checksum.
#[derive(Debug)]
pub(crate) struct Audit {
    path: PathBuf,
}

impl Audit {
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Only so many epochs are finished: lines about more, of a training that was cut off before its next checkpoint, are
    /// taken out.
    pub(crate) fn keep(&self, epochs: u32) -> Result<(), TrainerError> {
        self.shorten(epochs).map_err(|source| self.error(source))
    }

    fn shorten(&self, epochs: u32) -> io::Result<()> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let is_finished = |line: &&str| {
            let number = line.split(' ').next().and_then(|number| number.parse::<u32>().ok());
            number.is_some_and(|number| number <= epochs)
        };
        let kept: String = text.lines().filter(is_finished).map(|line| format!("{line}\n")).collect();
        if kept == text { Ok(()) } else { fs::write(&self.path, kept) }
    }

    pub(crate) fn append(&self, epoch: u32, tally: Tally) -> Result<(), TrainerError> {
        let Tally { samples, checksum } = tally;
        let file = File::options().create(true).append(true).open(&self.path);
        let written =
            file.and_then(|mut file| file.write_all(format!("{epoch} {samples} {checksum:016x}\n").as_bytes()));
        written.map_err(|source| self.error(source))
    }

    fn error(&self, source: io::Error) -> TrainerError {
        TrainerError::Audit { path: self.path.clone(), source }
    }
}
