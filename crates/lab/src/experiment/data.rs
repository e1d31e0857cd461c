//! The recorded data that experiments stand on, and what stands in for it.

use std::env;
use std::path::{Path, PathBuf};

use pollux_sim::ApplicationSet;

use super::ExperimentError;
use super::file::{ExperimentFile, Source};

/// Measurements of one type of GPU.
const ONE_TYPE: &str = "osdi21";
/// Measurements of several.
const TYPES: &str = "sia";

/// What jobs really do, and the published workloads where they are at hand.
pub(super) struct Data {
    /// On GPUs of one type.
    pub(super) applications: ApplicationSet,
    /// Folder of what was published with measurements of one type.
    pub(super) published: Option<PathBuf>,
    /// On GPUs of several types, where they were measured and somebody asks for them.
    typed: Option<ApplicationSet>,
    /// The profiles that ship.
    shipped: ApplicationSet,
    /// Where all recorded data is.
    pub(super) folder: PathBuf,
}

impl Data {
    /// From the folder that was asked for; else from `POLLUX_DATA` or `../shared/data`, where it may be missing. Nothing is
    /// read that the experiment does without.
    pub(super) fn load(asked: Option<&Path>, file: &ExperimentFile) -> Result<Self, ExperimentError> {
        let default = || env::var_os("POLLUX_DATA").map_or_else(|| PathBuf::from("../shared/data"), PathBuf::from);
        let folder = asked.map_or_else(default, Path::to_owned);
        let recorded = |part: &'static str, is_needed: bool| {
            let traces = folder.join(part).join("traces");
            if !is_needed {
                return Ok(None);
            }
            if folder.join(part).is_dir() {
                return ApplicationSet::recorded(&traces).map(Some).map_err(ExperimentError::Physics);
            }
            match asked {
                Some(path) => Err(ExperimentError::NoData { path: path.to_owned(), part }),
                None => Ok(None),
            }
        };
        let needs = |wanted: fn(&Source) -> bool| file.sweep.is_some() || file.workloads.iter().any(wanted);
        let one_type = recorded(ONE_TYPE, needs(|source| !matches!(source, Source::Typed(_) | Source::Shipped)))?;
        let typed = recorded(TYPES, file.workloads.iter().any(|source| matches!(source, Source::Typed(_))))?;
        Ok(Self {
            published: one_type.is_some().then(|| folder.join(ONE_TYPE)),
            applications: one_type.unwrap_or_else(ApplicationSet::parametric),
            typed,
            shipped: ApplicationSet::parametric(),
            folder,
        })
    }

    /// No recorded data at all.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self {
            applications: ApplicationSet::parametric(),
            published: None,
            typed: None,
            shipped: ApplicationSet::parametric(),
            folder: PathBuf::new(),
        }
    }

    /// What jobs of a kind of workload really do.
    pub(super) fn applications(&self, source: &Source) -> &ApplicationSet {
        match source {
            Source::Typed(_) => self.typed.as_ref().unwrap_or(&self.shipped),
            Source::Shipped => &self.shipped,
            Source::Published | Source::Generated | Source::File(_) | Source::Sweep => &self.applications,
        }
    }

    /// The kind of workload itself, or what stands in for it because it is not at hand.
    pub(super) fn at_hand(&self, source: &Source) -> Source {
        match source {
            Source::Published if self.published.is_none() => Source::Generated,
            Source::Typed(_) if self.typed.is_none() => Source::Shipped,
            Source::Published
            | Source::Generated
            | Source::Shipped
            | Source::Typed(_)
            | Source::File(_)
            | Source::Sweep => source.clone(),
        }
    }

    /// Whether all that an experiment asks for is at hand.
    pub(super) fn has_all(&self, file: &ExperimentFile) -> bool {
        let has = |source: &Source| match source {
            Source::Typed(_) => self.typed.is_some(),
            Source::Shipped => true,
            Source::Published | Source::Generated | Source::File(_) | Source::Sweep => self.published.is_some(),
        };
        if file.sweep.is_some() { has(&Source::Sweep) } else { file.workloads.iter().all(has) }
    }

    /// Which physics a kind of workload has.
    pub(super) const fn physics(&self, source: &Source) -> &'static str {
        match source {
            Source::Typed(_) => "recorded (sia)",
            Source::Shipped => "profiles that ship",
            Source::Published | Source::Generated | Source::File(_) | Source::Sweep => match self.published {
                Some(_) => "recorded (osdi21)",
                None => "parametric profiles: no recorded data at hand",
            },
        }
    }
}
