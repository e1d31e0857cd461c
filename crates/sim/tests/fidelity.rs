//! The published Tiresias runs, to the second: the policy is deterministic, so a faithful simulator lands on them.
//!
//! The folder comes from `POLLUX_DATA`; where it is missing these tests say so and pass.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use pollux_policy::PolicySettings;
use pollux_sim::{ApplicationSet, RunOutcome, SimulationSettings, read_osdi21, simulate};

const PUBLISHED_AVERAGES_S: [f64; 4] = [2473.7, 5145.0, 3876.3, 3280.3];

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

#[test]
fn tiresias_lands_on_the_published_completion_times() {
    let Some(folder) = data("fidelity") else { return };
    let applications = ApplicationSet::recorded(&folder.join("traces")).expect("the published traces");
    let published = fs::read_to_string(folder.join("published-jct.json")).expect("the published times");
    let published: serde_json::Value = serde_json::from_str(&published).expect("JSON");
    for (number, average_s) in (1..).zip(PUBLISHED_AVERAGES_S) {
        let name = format!("workload-{number}");
        let outcome = run("tiresias", &applications, &folder.join(format!("workloads/{name}.csv")));
        let summary = outcome.summary();
        assert!((summary.avg_jct_s / average_s - 1.0).abs() < 0.002, "{name}: {}", summary.avg_jct_s);
        let jobs = &published["tiresias"][&name];
        let near = |job: &&pollux_sim::JobOutcome| {
            let published_s = jobs[&job.name].as_f64().expect("every job was published");
            (job.completion_s() - published_s).abs() <= 1.0
        };
        let exact = outcome.jobs.iter().filter(near).count();
        assert!(exact * 100 >= outcome.jobs.len() * 95, "{name}: {exact} of {}", outcome.jobs.len());
    }
}

#[test]
fn recorded_physics_gives_the_same_bits_twice() {
    let Some(folder) = data("recorded determinism") else { return };
    let applications = ApplicationSet::recorded(&folder.join("traces")).expect("the published traces");
    let workload = folder.join("workloads/workload-3.csv");
    assert_eq!(run("castor", &applications, &workload), run("castor", &applications, &workload));
}
