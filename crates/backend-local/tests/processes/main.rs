//! Real processes: what every backend must do, and what only this one promises.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod families;
mod kills;
mod logs;
mod restarts;
mod slots;
mod starts;
mod upgrades;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pollux_backend::conformance::Trial;
use pollux_backend::{Observer, ReplicaId};
use pollux_backend_local::{LocalBackend, LocalSettings, LogLimits, MachineIdentity, NodeLayout};

/// The backend on fresh state, with what tests want to know of the state.
struct Machine {
    trial: Trial,
    state: PathBuf,
}

impl Machine {
    fn new(test: &str, settings: LocalSettings) -> Self {
        let state = fresh_state(test);
        let open = state.clone();
        Self { trial: Trial::new(move |observer| Box::new(backend(&open, &settings, observer))), state }
    }

    fn with_slots(test: &str, slots: u32) -> Self {
        Self::new(test, settings(NodeLayout::Slots(slots)))
    }

    fn folder(&self, replica: ReplicaId) -> PathBuf {
        self.state.join("replicas").join(replica.0.to_string())
    }

    /// The process that watches over a replica which runs.
    fn shim(&self, replica: ReplicaId) -> i32 {
        let claim: serde_json::Value = json(&self.folder(replica).join("shim.pid"));
        claim["shim"]["pid"].as_i64().unwrap().try_into().unwrap()
    }
}

fn settings(nodes: NodeLayout) -> LocalSettings {
    LocalSettings {
        nodes,
        program: env!("CARGO_BIN_EXE_pollux-shim").into(),
        grace: Duration::from_secs(600),
        log: LogLimits::default(),
        checkpoint_dir: None,
        identity: MachineIdentity::default(),
    }
}

fn backend(state: &Path, settings: &LocalSettings, observer: Observer) -> LocalBackend {
    LocalBackend::new(state, settings.clone(), observer).unwrap()
}

fn fresh_state(test: &str) -> PathBuf {
    let state = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("processes").join(test);
    if state.exists() {
        fs::remove_dir_all(&state).unwrap();
    }
    fs::create_dir_all(&state).unwrap();
    state.canonicalize().unwrap()
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Whether a process lives; one that only waits to be counted as dead does not.
fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn trial(test: &str) -> Trial {
    // Small, so that long logs are rotated.
    let log = LogLimits { bytes_max: 100_000, old_files: 2 };
    Machine::new(test, LocalSettings { log, ..settings(NodeLayout::Slots(4)) }).trial
}

pollux_backend::conformance_tests!(
    trial,
    without held_starts: "a process of this machine starts at once",
    without lost_nodes: "the only node is the machine of the backend itself"
);
