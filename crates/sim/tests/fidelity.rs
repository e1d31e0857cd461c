//! The published runs of Tiresias and Optimus with an oracle, to the second: both are deterministic, so a faithful
//! simulator lands on them. The averages of our own policies are those of README.md.
//!
//! The folder comes from `POLLUX_DATA`; where it is missing these tests say so and pass.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use pollux_policy::PolicySettings;
use pollux_sim::{ApplicationSet, RunOutcome, SimulationSettings, read_osdi21, simulate};

const TIRESIAS_AVERAGES_S: [f64; 4] = [2473.7, 5145.0, 3876.3, 3280.3];
const OPTIMUS_AVERAGES_S: [f64; 4] = [4087.1, 6913.9, 3944.0, 5967.8];

fn data(test: &str) -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = env::var_os("POLLUX_DATA").map_or_else(default, PathBuf::from).join("osdi21");
    if folder.is_dir() {
        return Some(folder);
    }
    // Not a print macro: the test harness would swallow it.
    let notice = format!("skipped: {test}: no folder {}; set POLLUX_DATA\n", folder.display());
    io::stderr().write_all(notice.as_bytes()).expect("standard error is open");
    None
}

fn run(policy: &str, applications: &ApplicationSet, workload: &Path) -> RunOutcome {
    let cluster = "16x4".parse().expect("a cluster");
    let settings = SimulationSettings::new(PolicySettings::named(policy).expect("a policy"), cluster);
    let workload = read_osdi21(workload).expect("a published workload");
    simulate(&settings, applications, &workload, &mut |_| ()).expect("a simulation")
}

/// Averages within 0.1%, and at least `exact_min` of the 160 jobs of each workload within a second.
fn check_published(folder: &Path, policy: &str, published_as: &str, averages_s: [f64; 4], exact_min: usize) {
    let applications = ApplicationSet::recorded(&folder.join("traces")).expect("the published traces");
    let published = fs::read_to_string(folder.join("published-jct.json")).expect("the published times");
    let published: serde_json::Value = serde_json::from_str(&published).expect("JSON");
    for (number, average_s) in (1..).zip(averages_s) {
        let name = format!("workload-{number}");
        let outcome = run(policy, &applications, &folder.join(format!("workloads/{name}.csv")));
        let summary = outcome.summary();
        assert!((summary.avg_jct_s / average_s - 1.0).abs() < 0.001, "{name}: {}", summary.avg_jct_s);
        let jobs = &published[published_as][&name];
        let near = |job: &&pollux_sim::JobOutcome| {
            let published_s = jobs[&job.name].as_f64().expect("every job was published");
            (job.completion_s() - published_s).abs() <= 1.0
        };
        let exact = outcome.jobs.iter().filter(near).count();
        assert!(exact >= exact_min, "{policy} on {name}: {exact} of {}", outcome.jobs.len());
    }
}

#[test]
fn tiresias_lands_on_the_published_completion_times() {
    let Some(folder) = data("fidelity of tiresias") else { return };
    check_published(&folder, "tiresias", "tiresias", TIRESIAS_AVERAGES_S, 160);
}

/// It asks for shapes between which step times were interpolated, and one decision that falls otherwise moves others.
#[test]
fn optimus_with_an_oracle_lands_on_the_published_completion_times() {
    let Some(folder) = data("fidelity of optimus") else { return };
    check_published(&folder, "optimus-oracle", "optimus", OPTIMUS_AVERAGES_S, 145);
}

/// The mean over the published workloads of the average completion time.
fn mean_of_averages_s(folder: &Path, policy: &str) -> f64 {
    let applications = ApplicationSet::recorded(&folder.join("traces")).expect("the published traces");
    let average_s = |number: u32| {
        let workload = folder.join(format!("workloads/workload-{number}.csv"));
        run(policy, &applications, &workload).summary().avg_jct_s
    };
    (1..=4).map(average_s).sum::<f64>() / 4.0
}

#[test]
fn pollux_stays_as_fast_as_measured() {
    let Some(folder) = data("completion times of pollux") else { return };
    let average_s = mean_of_averages_s(&folder, "pollux");
    assert!((average_s / 2550.0 - 1.0).abs() < 0.005, "{average_s}");
}

#[test]
fn castor_stays_as_fast_as_measured_where_epochs_are_declared() {
    let Some(folder) = data("completion times of castor") else { return };
    let average_s = mean_of_averages_s(&folder, "castor");
    assert!((average_s / 2072.0 - 1.0).abs() < 0.005, "{average_s}");
}

#[test]
fn recorded_physics_gives_the_same_bits_twice() {
    let Some(folder) = data("recorded determinism") else { return };
    let applications = ApplicationSet::recorded(&folder.join("traces")).expect("the published traces");
    let workload = folder.join("workloads/workload-3.csv");
    assert_eq!(run("castor", &applications, &workload), run("castor", &applications, &workload));
}
