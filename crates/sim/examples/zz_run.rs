//! scratch
use pollux_policy::PolicySettings;
use pollux_sim::*;
use std::path::Path;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let apps = ApplicationSet::recorded(Path::new("/work/shared/data/osdi21/traces")).unwrap();
    let mut avg = 0.0;
    let mut n = 0.0;
    for w in 1..=4 {
        let workload = read_osdi21(Path::new(&format!("/work/shared/data/osdi21/workloads/workload-{w}.csv"))).unwrap();
        let mut settings = SimulationSettings::new(PolicySettings::named(&args[1]).unwrap(), "16x4".parse().unwrap());
        settings.declare_epochs = args.get(2).is_none_or(|a| a == "yes");
        let t = std::time::Instant::now();
        let out = simulate(&settings, &apps, &workload, &mut |_| ()).unwrap();
        let s = out.summary();
        println!(
            "{} {} avg {:.1} p50 {:.0} p99 {:.0} mk {:.0} util {:.3} restarts {:.2} queued {:.0} rho {:.2}/{:.2}/{:.2} eff {:.3} in {:?}",
            args[1],
            w,
            s.avg_jct_s,
            s.p50_jct_s,
            s.p99_jct_s,
            s.makespan_s,
            s.utilisation,
            s.restarts_per_job,
            s.avg_queued_s,
            s.rho_max,
            s.rho_p90,
            s.rho_above_1,
            s.avg_efficiency,
            t.elapsed()
        );
        avg += s.avg_jct_s;
        n += 1.0;
        if args.get(3).is_some() {
            for j in &out.jobs {
                println!("JOB {w} {} {}", j.name, j.completion_s());
            }
        }
    }
    println!("mean {:.1}", avg / n);
}
