use std::path::Path;
use std::{fmt, fs};

use pollux_agent::{StepObservation, Tuning};
use pollux_model::{Shape, ThroughputModel};

use crate::error::TrainerError;

/// Paces that ship with the trainer, by name.
const SHIPPED: [(&str, &str); 3] = [
    ("good", include_str!("../paces/good.toml")),
    ("medium", include_str!("../paces/medium.toml")),
    ("poor", include_str!("../paces/poor.toml")),
];

/// How long steps take, where that is not to be left to this machine: as a throughput model says. Everything else in a
/// step is real; a paced trainer only sleeps for the rest of the time.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    name: String,
    model: ThroughputModel,
}

impl Pace {
    /// One that ships, or one in a file of the model's parameters.
    pub(crate) fn find(name: &str) -> Result<Self, TrainerError> {
        let refuse = |reason: &dyn fmt::Display| {
            let names = SHIPPED.map(|(name, _)| name).join(", ");
            Err(TrainerError::Setting(format!(
                "--pace {name}: {reason}; expected {names} and files of seven parameters"
            )))
        };
        let text = match SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            Some((_, text)) => (*text).to_owned(),
            None => match fs::read_to_string(Path::new(name)) {
                Ok(text) => text,
                Err(error) => return refuse(&error),
            },
        };
        match toml::from_str(&text) {
            Ok(model) => Ok(Self { name: name.to_owned(), model }),
            Err(error) => refuse(&error.message()),
        }
    }

    /// Seconds of a step that does `share` of what it would do if it were not cut short.
    pub(crate) fn step_s(&self, shape: Shape, tuning: Tuning, share: f64) -> f64 {
        share * self.model.step_s(shape, f64::from(tuning.local_batch), f64::from(tuning.accumulation_steps))
    }

    /// A step as the model says it was.
    pub(crate) fn observation(&self, observed: &StepObservation) -> StepObservation {
        let (shape, local_batch) = (observed.placement.shape, f64::from(observed.local_batch));
        let compute_s = self.model.micro_step_s(shape, local_batch);
        StepObservation {
            compute_s,
            sync_s: self.model.final_step_s(shape, local_batch) - compute_s,
            ..observed.clone()
        }
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use pollux_agent::Placement;

    use super::*;

    /// Steps per second on so many GPUs of a node against one.
    fn speedup(name: &str, gpus: u32) -> f64 {
        let pace = Pace::find(name).unwrap();
        let tuning = Tuning { local_batch: 64, accumulation_steps: 0 };
        let step_s = |gpus| pace.step_s(Shape::new(1, gpus).unwrap(), tuning, 1.0);
        f64::from(gpus) * step_s(1) / step_s(gpus)
    }

    #[test]
    fn the_shipped_paces_differ_in_how_well_they_scale() {
        assert!(speedup("good", 8) > 6.0, "{}", speedup("good", 8));
        assert!((2.5..5.5).contains(&speedup("medium", 8)), "{}", speedup("medium", 8));
        assert!((1.2..2.5).contains(&speedup("poor", 8)), "{}", speedup("poor", 8));
    }

    #[test]
    fn what_the_agent_is_told_adds_up_to_the_step() {
        let pace = Pace::find("medium").unwrap();
        let shape = Shape::new(1, 4).unwrap();
        let placement = Placement::from(shape);
        let tuning = Tuning { local_batch: 32, accumulation_steps: 2 };
        let observed =
            StepObservation { placement, local_batch: 32, accumulation_steps: 2, compute_s: 9.0, sync_s: 9.0 };
        let told = pace.observation(&observed);
        let step_s = 3.0 * told.compute_s + told.sync_s;
        assert!((step_s / pace.step_s(shape, tuning, 1.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_pace_that_is_not_there_or_makes_no_sense_is_one_clear_line() {
        let error = Pace::find("excellent").unwrap_err().to_string();
        assert!(error.starts_with("--pace excellent: No such file") && error.contains("good, medium, poor"), "{error}");
        let path = std::env::temp_dir().join(format!("pollux-pace-{}.toml", std::process::id()));
        fs::write(&path, include_str!("../paces/good.toml").replace("gamma = ", "gamma = 1")).unwrap();
        let error = Pace::find(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("gamma") && error.lines().count() == 1, "{error}");
        fs::remove_file(path).unwrap();
    }
}
