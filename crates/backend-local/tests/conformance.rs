//! Processes of this machine do what every backend must.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use pollux_backend::conformance::Trial;
use pollux_backend_local::{LocalBackend, LocalSettings, LogLimits, NodeLayout};

fn trial(test: &str) -> Trial {
    let state = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("conformance").join(test);
    if state.exists() {
        fs::remove_dir_all(&state).unwrap();
    }
    Trial::new(move |observer| {
        let settings = LocalSettings {
            nodes: NodeLayout::Slots(4),
            program: env!("CARGO_BIN_EXE_pollux-shim").into(),
            grace: Duration::from_secs(600),
            log: LogLimits::default(),
        };
        Box::new(LocalBackend::new(&state, settings, observer).unwrap())
    })
}

pollux_backend::conformance_tests!(trial);
