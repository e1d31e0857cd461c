use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{command, experiment, run};

fn data(test: &str) -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = env::var_os("POLLUX_DATA").map_or_else(default, PathBuf::from);
    if folder.join("osdi21").is_dir() {
        return folder.canonicalize().ok();
    }
    // Not a print macro: the test harness would swallow it.
    let notice = format!("skipped: {test}: no recorded data in {}; set POLLUX_DATA\n", folder.display());
    io::stderr().write_all(notice.as_bytes()).expect("standard error is open");
    None
}

/// The published Tiresias is deterministic: 3693.8 s on average over the four workloads.
#[test]
fn figures_are_checked_against_what_was_expected() {
    let Some(data) = data("expected figures") else { return };
    let text = "title = 'T'\nquestion = 'Q'\ntolerance = 0.001\nmeasures = ['avg_jct_s']\nrows = [\n\
        { label = 'right', policy = 'tiresias', expected = { avg_jct_s = 3693.8 } },\n\
        { label = 'wrong', policy = 'tiresias', expected = { avg_jct_s = 3000 } },\n\
        ]\nplot = { kind = 'bars', measures = ['avg_jct_s'] }\n";
    let folder = experiment("recorded", text);
    let result = run(command(&folder).env("POLLUX_DATA", data), b"");
    assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""));
    let md = fs::read_to_string(folder.join("results/small.md")).unwrap();
    assert!(md.contains("| physics | recorded (osdi21) |"), "{md}");
    assert!(md.contains("| workloads | published: workload-1, workload-2, workload-3, workload-4 (160 jobs each) |"));
    assert!(md.contains("| right | 3694 | 3694 (+0%) |"), "{md}");
    assert!(md.contains("| wrong | 3694 | expected 3000, off by +23% |"), "{md}");
    assert!(fs::read_to_string(folder.join("results/small.svg")).unwrap().contains("expected, as published"));
}
