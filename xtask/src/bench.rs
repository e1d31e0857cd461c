//! `make bench`: what the live scheduler bears and our numerical code costs, beside the recorded figures of the published implementation.

use std::path::Path;
use std::process::ExitCode;

use pollux_policy::PolicySettings;

use crate::instances::InstanceSummary;
use crate::reference::{self, FitSummary, GoodputSummary};
use crate::rounds::Scale;
use crate::{load, rounds, simulations};

/// Prints the tables. Without the recorded figures there is nothing to set ours beside, which is said and not an error.
pub(crate) fn bench(root: &Path, folder: &Path, data: &Path) -> anyhow::Result<ExitCode> {
    load::print(root)?;
    print_rounds()?;
    simulations::print(data)?;
    if !folder.is_dir() {
        println!("skipped: {} is not here; give a folder with fits.json or goodput.json", folder.display());
        return Ok(ExitCode::SUCCESS);
    }
    let summary = reference::compare(folder)?;
    if let Some(fits) = &summary.fits {
        print_fits(fits);
    }
    if let Some(goodput) = &summary.goodput {
        print_goodput(goodput);
    }
    if let Some(instances) = &summary.instances {
        print_instances(instances);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_fits(fits: &FitSummary) {
    let times = |ours: f64| fits.reference_median_us / ours;
    println!("throughput fit, median of {} recorded profiles        budget: 1 ms", fits.count);
    println!("  {:<22} {:>12}", "published (SciPy)", format!("{:.0} us", fits.reference_median_us));
    println!("  {:<22} {:>12} {:>12}", "ours, from nothing", us(fits.median_us), faster(times(fits.median_us)));
    println!("  {:<22} {:>12} {:>12}", "ours, warm start", us(fits.warm_median_us), faster(times(fits.warm_median_us)));
    println!();
    println!("fit quality: objective against the published one (lower is better)");
    println!(
        "  {:>12} {:>9} {:>11} {:>11} {:>11} {:>13} {:>11}",
        "observations", "profiles", "published", "ours", "ratio min", "ratio median", "ratio max"
    );
    for row in &fits.by_observations {
        let sizes = match (row.observations_min, row.observations_max) {
            (low, high) if low == high => low.to_string(),
            (low, high) => format!("{low}-{high}"),
        };
        println!(
            "  {:>12} {:>9} {:>11.5} {:>11.5} {:>11.4} {:>13.4} {:>11.4}",
            sizes,
            row.count,
            row.reference_objective_median,
            row.objective_median,
            row.ratio_min,
            row.ratio_median,
            row.ratio_max
        );
    }
    println!(
        "  {} of {} lower by more than 0.1%, {} higher; largest ratio {:.5}, with a warm start {:.5}",
        fits.lower_than_reference, fits.count, fits.worse_than_reference, fits.ratio_max, fits.warm_ratio_max
    );
    println!();
}

fn print_goodput(goodput: &GoodputSummary) {
    println!("best batch and accumulation, median of {} recorded choices    budget: 3 us", goodput.count);
    println!("  {:<22} {:>12}", "ours, exact", us(goodput.median_us));
    println!(
        "  against the published 50-point grid: {} worse, {} better by more than 0.1%, at most {:.2}% better",
        goodput.worse_than_reference,
        goodput.higher_than_reference,
        (goodput.ratio_max - 1.0) * 100.0
    );
}

fn print_instances(instances: &InstanceSummary) {
    println!();
    println!("plans of {} recorded rounds of 64 GPUs against the published genetic algorithm", instances.count);
    println!("  {:<22} {:>12}", "published (pymoo)", format!("{:.0} ms", instances.ga_ms_mean));
    println!("  {:<22} {:>12}", "ours", format!("{:.2} ms", instances.plan_ms_mean));
    println!(
        "  fitness: {} below, at least {:.4} and on average {:.4} times as high; distance to the certified bound {:.3}% \
         on average, {:.3}% at most",
        instances.below_ga,
        instances.ratio_min,
        instances.ratio_mean,
        instances.gap_mean * 100.0,
        instances.gap_max * 100.0
    );
}

fn print_rounds() -> anyhow::Result<()> {
    println!("planning round with warm tables, one core, 2% of jobs replaced between rounds");
    println!(
        "  {:<8} {:>7} {:>6} {:>7} {:>11} {:>11} {:>13}",
        "policy", "GPUs", "types", "jobs", "mean", "budget", "gap to bound"
    );
    let alike = [
        (64, 1, 160, 50, 1.0),
        (1_024, 1, 2_560, 10, 10.0),
        (4_096, 1, 10_240, 5, 40.0),
        (16_384, 1, 40_960, 3, 250.0),
    ];
    let mixed = [(64, 3, 160, 50, 2.0), (2_048, 3, 5_120, 10, 100.0), (16_384, 4, 40_960, 3, 500.0)];
    for (name, scales) in
        [("pollux", &alike[..]), ("castor", &alike), ("pollux", &mixed), ("castor", &mixed), ("sia", &mixed)]
    {
        for &(gpus, types, jobs, rounds, budget_ms) in scales {
            let cost = rounds::measure(&PolicySettings::named(name)?, Scale { gpus, types, jobs }, rounds)?;
            println!(
                "  {name:<8} {:>7} {types:>6} {:>7} {:>8.2} ms {:>8} ms {:>12.3}%",
                cost.gpus,
                cost.jobs,
                cost.mean_ms,
                budget_ms,
                cost.gap_mean * 100.0
            );
        }
    }
    println!();
    Ok(())
}

fn us(value: f64) -> String {
    if value < 10.0 { format!("{value:.2} us") } else { format!("{value:.0} us") }
}

fn faster(ratio: f64) -> String {
    format!("{ratio:.0}x faster")
}
