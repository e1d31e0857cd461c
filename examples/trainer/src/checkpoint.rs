use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::error::TrainerError;
use crate::state::{BrainState, Recipe, Replica, StateError, decode, encode};

const NEWEST: &str = "checkpoint";
const PREVIOUS: &str = "checkpoint.previous";
const UNFINISHED: &str = "checkpoint.unfinished";
const CORRUPT: &str = "checkpoint.corrupt";

/// The saved states of one training: the newest, and the one before in case the newest cannot be read.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    folder: PathBuf,
}

impl Checkpoints {
    /// The folder is made if it is not there.
    pub(crate) fn open(folder: &Path) -> Result<Self, TrainerError> {
        let unusable = |source| TrainerError::Checkpoint { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(unusable)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Saves a state. Whenever the machine stops there is a whole one: the file is complete on disk before it gets its
    /// name, and the one before keeps another name.
    pub(crate) fn save(&self, recipe: &Recipe, replica: &Replica, brain: &BrainState) -> Result<(), TrainerError> {
        self.write(&encode(recipe, replica, brain))
            .map_err(|source| TrainerError::Checkpoint { path: self.folder.join(NEWEST), source })
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let path = |name| self.folder.join(name);
        let mut file = File::create(path(UNFINISHED))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        match fs::rename(path(NEWEST), path(PREVIOUS)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        fs::rename(path(UNFINISHED), path(NEWEST))?;
        File::open(&self.folder)?.sync_all()
    }

    /// The newest state that can be read; `None` if there never was one. One that cannot be read is set aside, so that
    /// it never takes the place of a good one.
    pub(crate) fn load(
        &self,
        recipe: &Recipe,
        parameter_count: usize,
    ) -> Result<Option<(Replica, BrainState)>, TrainerError> {
        let mut broken = None;
        for name in [NEWEST, PREVIOUS] {
            let path = self.folder.join(name);
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(source) => return Err(TrainerError::Checkpoint { path, source }),
            };
            match decode(&bytes, recipe, parameter_count) {
                Ok(state) => return Ok(Some(state)),
                Err(error @ StateError::Corrupt(_)) => {
                    eprintln!("{}: {error}; trying the one before", path.display());
                    let aside = fs::rename(&path, self.folder.join(CORRUPT));
                    aside.map_err(|source| TrainerError::Checkpoint { path: path.clone(), source })?;
                    broken = Some((path, error));
                }
                Err(source @ (StateError::Version { .. } | StateError::Recipe { .. })) => {
                    return Err(TrainerError::State { path, source });
                }
            }
        }
        match broken {
            Some((path, source)) => Err(TrainerError::State { path, source }),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use pollux_agent::{Agent, AgentSettings};
    use pollux_model::BatchLimits;

    use super::*;
    use crate::optimiser::{Optimiser, OptimiserKind};
    use crate::share::Position;

    const PARAMETERS: usize = 5;
    const RECIPE: Recipe =
        Recipe { seed: 1, samples: 100, label_noise: 0.1, width: 3, optimiser: OptimiserKind::Adam, batch_size: 8 };

    fn state(cursor: u32) -> (Replica, BrainState) {
        let mut parameters = vec![0.1; PARAMETERS];
        let mut optimiser = Optimiser::new(RECIPE.optimiser, PARAMETERS);
        optimiser.update(&mut parameters, &[0.3, -1e-20, 7.0, 0.0, f32::MIN_POSITIVE], 0.01);
        let agent = Agent::new(AgentSettings::new(BatchLimits::new(8, 64, 1, 64).unwrap()));
        let brain = BrainState {
            agent: agent.state().clone(),
            samples: u64::from(cursor) + 300,
            epoch_samples: u64::from(cursor),
            epoch_checksum: u64::MAX - 5,
            epoch_loss: 0.1 + 0.2,
        };
        (Replica { parameters, optimiser, position: Position { epoch: 3, cursor } }, brain)
    }

    fn fresh(name: &str) -> Checkpoints {
        let folder = std::env::temp_dir().join(format!("pollux-trainer-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Checkpoints::open(&folder).unwrap()
    }

    fn save(checkpoints: &Checkpoints, cursor: u32) {
        let (replica, brain) = state(cursor);
        checkpoints.save(&RECIPE, &replica, &brain).unwrap();
    }

    fn cursor(checkpoints: &Checkpoints) -> Option<u32> {
        checkpoints.load(&RECIPE, PARAMETERS).unwrap().map(|(replica, _)| replica.position.cursor)
    }

    #[test]
    fn what_is_saved_is_loaded_to_the_last_bit() {
        let checkpoints = fresh("saved");
        assert_eq!(cursor(&checkpoints), None);
        save(&checkpoints, 40);
        assert_eq!(checkpoints.load(&RECIPE, PARAMETERS).unwrap(), Some(state(40)));
        save(&checkpoints, 48);
        assert_eq!(cursor(&checkpoints), Some(48));
        fs::remove_dir_all(&checkpoints.folder).unwrap();
    }

    #[test]
    fn wherever_the_newest_is_damaged_the_one_before_is_loaded_and_stays() {
        let checkpoints = fresh("damaged");
        save(&checkpoints, 40);
        let length = fs::read(checkpoints.folder.join(NEWEST)).unwrap().len();
        for place in [0, 9, 30, length / 2, length - 9, length - 1] {
            save(&checkpoints, 48);
            let path = checkpoints.folder.join(NEWEST);
            let mut bytes = fs::read(&path).unwrap();
            bytes[place] ^= 4;
            fs::write(&path, &bytes).unwrap();
            assert_eq!(cursor(&checkpoints), Some(40), "byte {place}");
            // The next save must not put the damaged one in the place of the good one.
            save(&checkpoints, 40);
        }
        for length in [0, 7, 20, length - 1] {
            save(&checkpoints, 48);
            let file = File::options().write(true).open(checkpoints.folder.join(NEWEST)).unwrap();
            file.set_len(length as u64).unwrap();
            assert_eq!(cursor(&checkpoints), Some(40), "cut to {length}");
            save(&checkpoints, 40);
        }
        fs::remove_dir_all(&checkpoints.folder).unwrap();
    }

    #[test]
    fn a_crash_between_the_two_renames_loses_nothing() {
        let checkpoints = fresh("renames");
        save(&checkpoints, 40);
        fs::rename(checkpoints.folder.join(NEWEST), checkpoints.folder.join(PREVIOUS)).unwrap();
        assert_eq!(cursor(&checkpoints), Some(40));
        fs::remove_dir_all(&checkpoints.folder).unwrap();
    }

    #[test]
    fn a_state_of_another_training_is_refused_and_left_alone() {
        let checkpoints = fresh("another");
        save(&checkpoints, 40);
        let other = Recipe { width: 4, ..RECIPE };
        let error = checkpoints.load(&other, PARAMETERS).unwrap_err().to_string();
        assert!(error.contains("belongs to another training"), "{error}");
        assert_eq!(cursor(&checkpoints), Some(40));
        fs::remove_dir_all(&checkpoints.folder).unwrap();
    }

    #[test]
    fn with_nothing_but_damaged_states_the_training_does_not_start_over_in_silence() {
        let checkpoints = fresh("nothing");
        fs::write(checkpoints.folder.join(NEWEST), "what is this").unwrap();
        let error = checkpoints.load(&RECIPE, PARAMETERS).unwrap_err().to_string();
        assert!(error.contains("not a state of this program"), "{error}");
        fs::remove_dir_all(&checkpoints.folder).unwrap();
    }
}
