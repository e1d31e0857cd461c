//! Whole simulated workloads: what they cost, and what they give beside the published runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use pollux_policy::PolicySettings;
use pollux_sim::{ApplicationSet, ClusterSpec, SimulationSettings, Workload, read_osdi21, simulate};

const WORKLOADS: u32 = 4;

/// Prints the table; without the recorded traces there is nothing to set ours beside, which is said and not an error.
pub(crate) fn print(data: &Path) -> Result<()> {
    let traces = data.join("osdi21/traces");
    if !traces.is_dir() {
        println!("simulations skipped: {} is not here; give its parent as POLLUX_DATA\n", traces.display());
        return Ok(());
    }
    let start = Instant::now();
    let applications = ApplicationSet::recorded(&traces)?;
    let load_s = start.elapsed().as_secs_f64();
    let workloads: Vec<Workload> = (1..=WORKLOADS)
        .map(|number| read_osdi21(&data.join(format!("osdi21/workloads/workload-{number}.csv"))))
        .collect::<Result<_, _>>()?;
    let published = published(&data.join("osdi21/published-jct.json"))?;
    println!("simulated workloads of 160 jobs, 16x4 GPUs, recorded physics, one core     budget: 2 s each");
    println!(
        "  {:<18} {:>46} {:>9} {:>11} {:>9}",
        "policy", "average completion time of workloads 1-4, s", "mean", "published", "time"
    );
    let policies = PolicySettings::all().map(|policy| policy.name());
    for (name, declare_epochs) in policies.into_iter().map(|name| (name, true)).chain([("castor", false)]) {
        let (mut averages, mut seconds) = (Vec::new(), 0.0);
        for workload in &workloads {
            let cluster: ClusterSpec = "16x4".parse()?;
            let settings =
                SimulationSettings { declare_epochs, ..SimulationSettings::new(PolicySettings::named(name)?, cluster) };
            let start = Instant::now();
            let outcome = simulate(&settings, &applications, workload, &mut |_| ())?;
            seconds += start.elapsed().as_secs_f64();
            averages.push(outcome.summary().avg_jct_s);
        }
        let label = if declare_epochs { name.to_owned() } else { format!("{name}, no epochs") };
        let each: Vec<String> = averages.iter().map(|average| format!("{average:10.1}")).collect();
        let mean = averages.iter().sum::<f64>() / f64::from(WORKLOADS);
        let reference =
            published.get(name.trim_end_matches("-oracle")).map_or_else(|| "-".to_owned(), |mean| format!("{mean:.1}"));
        let per_run = seconds / f64::from(WORKLOADS);
        println!("  {label:<18} {:>46} {mean:>9.1} {reference:>11} {per_run:>7.2} s", each.join(" "));
    }
    println!("  loading the traces took {load_s:.2} s\n");
    Ok(())
}

/// Mean over the workloads of the published average completion times, by policy.
fn published(path: &Path) -> Result<BTreeMap<String, f64>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let times: BTreeMap<String, BTreeMap<String, BTreeMap<String, f64>>> =
        serde_json::from_str(&text).with_context(|| format!("{}: not the expected form", path.display()))?;
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let policies = times.into_iter().map(|(policy, workloads)| {
        let averages = workloads.into_values().map(|jobs| mean(jobs.into_values().collect())).collect();
        (policy, mean(averages))
    });
    Ok(policies.collect())
}
