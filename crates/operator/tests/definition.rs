//! The definition that is installed follows from the type.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::{env, fs};

#[test]
fn the_definition_in_the_chart_is_that_of_the_type() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/pollux/crds/polluxjobs.yaml");
    let expected = serde_norway::to_string(&pollux_operator::definition()).unwrap();
    if env::var_os("POLLUX_WRITE_DEFINITION").is_some() {
        fs::write(&file, &expected).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "it differs; POLLUX_WRITE_DEFINITION=1 makes this test write it");
}
