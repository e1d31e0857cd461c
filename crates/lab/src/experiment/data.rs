//! The recorded data that experiments stand on, and what stands in for it.

use std::env;
use std::path::{Path, PathBuf};

use pollux_sim::ApplicationSet;

use super::ExperimentError;

const FOLDER: &str = "osdi21";

/// What jobs really do, and the published workloads where they are at hand.
pub(super) struct Data {
    pub(super) applications: ApplicationSet,
    /// Folder of what was published.
    pub(super) published: Option<PathBuf>,
}

impl Data {
    /// From the folder that was asked for; else from `POLLUX_DATA` or `../shared/data`, where it may be missing.
    pub(super) fn load(asked: Option<&Path>) -> Result<Self, ExperimentError> {
        let default = || env::var_os("POLLUX_DATA").map_or_else(|| PathBuf::from("../shared/data"), PathBuf::from);
        let folder = asked.map_or_else(default, Path::to_owned);
        let published = folder.join(FOLDER);
        if published.is_dir() {
            let applications = ApplicationSet::recorded(&published.join("traces")).map_err(ExperimentError::Physics)?;
            return Ok(Self { applications, published: Some(published) });
        }
        match asked {
            Some(path) => Err(ExperimentError::NoData { path: path.to_owned() }),
            None => Ok(Self { applications: ApplicationSet::parametric(), published: None }),
        }
    }

    /// Which physics this is.
    pub(super) const fn physics(&self) -> &'static str {
        match self.published {
            Some(_) => "recorded (osdi21)",
            None => "parametric profiles: no recorded data at hand",
        }
    }
}
