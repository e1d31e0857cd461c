use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use super::{fit, folder};

const APPLICATIONS: [&str; 6] = ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"];
/// What the paper reports for its own fits.
const MEAN_ERROR_MAX: f64 = 0.10;

/// The published measurements, where this machine has them.
fn traces() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let data = env::var_os("POLLUX_DATA").map_or(beside, PathBuf::from);
    let traces = data.join("osdi21/traces");
    if traces.is_dir() {
        return Some(traces);
    }
    // Straight to stderr, because the test harness hides what a passing test prints.
    let mut stderr = io::stderr();
    writeln!(stderr, "skipped: no published measurements in {}; set POLLUX_DATA", traces.display()).unwrap();
    None
}

#[test]
fn every_published_application_is_predicted_within_the_papers_error() {
    let Some(traces) = traces() else { return };
    let folder = folder("traces");
    for application in APPLICATIONS {
        let file = |name: &str| traces.join(application).join(name).to_str().unwrap().to_owned();
        let plot = folder.join(application).with_extension("svg");
        let pools = [vec![file("placements.csv")], vec![file("placements.csv"), file("scalability.csv")]];
        for files in pools {
            let options = ["-o", "json", "--plot", plot.to_str().unwrap()].map(str::to_owned);
            let report = fit(&[&files[..], &options].concat()).json();
            let mean = report["error"]["mean"].as_f64().unwrap();
            assert!(mean <= MEAN_ERROR_MAX, "{files:?}: {mean}");
            assert!(fs::read_to_string(&plot).unwrap().trim_end().ends_with("</svg>"));
        }
    }
}
