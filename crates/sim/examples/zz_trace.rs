//! scratch
use std::path::Path;
use pollux_policy::PolicySettings;
use pollux_sim::*;
fn main() {
    let apps = ApplicationSet::recorded(Path::new("/work/shared/data/osdi21/traces")).unwrap();
    let workload = read_osdi21(Path::new("/work/shared/data/osdi21/workloads/workload-1.csv")).unwrap();
    let mut settings = SimulationSettings::new(PolicySettings::named("tiresias").unwrap(), "16x4".parse().unwrap());
    settings.record_series = true;
    let out = simulate(&settings, &apps, &workload, &mut |_| ()).unwrap();
    for j in &out.jobs[..18] {
        println!("{} sub {} req {} start {} fin {} restarts {}", j.name, j.submitted_s, workload.jobs().iter().find(|x| x.name==j.name).unwrap().requested_replicas, j.started_s, j.finished_s, j.restarts);
        for s in j.series.iter().filter(|s| s.efficiency == 0.0) { println!("      {} r {} n {}", s.time_s, s.replicas, s.nodes); }
    }
    for c in out.cluster.iter().take(60) { println!("{c:?}"); }
}
