//! The simulator on the measurements published with Sia (SOSP 2023): three types of GPU.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use pollux_model::GpuTypeName;
use pollux_policy::PolicySettings;
use pollux_sim::{
    ApplicationName, ApplicationSet, ClusterSpec, NodeGroup, OnType, Parametric, Recorded, RunOutcome,
    SimulationSettings, Workload, WorkloadJob, read_osdi21, simulate,
};

fn data(what: &str) -> Option<PathBuf> {
    let root = std::env::var_os("POLLUX_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    let folder = root.join("sia");
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped {what}: no recorded data in {}", folder.display());
    None
}

fn applications(folder: &Path) -> &'static ApplicationSet {
    static LOADED: OnceLock<ApplicationSet> = OnceLock::new();
    LOADED.get_or_init(|| ApplicationSet::recorded(&folder.join("traces")).expect("the published traces"))
}

fn group(count: u32, gpus: u32, gpu_type: &str) -> NodeGroup {
    NodeGroup { gpu_type: Some(gpu_type.to_owned()), ..NodeGroup::of_gpus(count, gpus) }
}

/// The cluster of the paper's simulations.
fn mixed() -> ClusterSpec {
    ClusterSpec::new(vec![group(6, 4, "aws"), group(3, 8, "rtx"), group(2, 8, "dgx-ext")]).expect("a cluster")
}

fn run(policy: &str, cluster: ClusterSpec, applications: &ApplicationSet, workload: &Workload) -> RunOutcome {
    let policy = PolicySettings::named(policy).expect("a policy");
    let settings = SimulationSettings { declare_epochs: false, ..SimulationSettings::new(policy, cluster) };
    simulate(&settings, applications, workload, &mut |_| ()).expect("a simulation")
}

fn alone(application: ApplicationName) -> Workload {
    let job = WorkloadJob { name: "alone".to_owned(), ..WorkloadJob::of(application) };
    Workload::new("alone", None, vec![job]).expect("a workload")
}

#[test]
fn types_have_the_largest_micro_batches_that_fit_their_memory() {
    let Some(folder) = data("memory bounds") else { return };
    let largest = |name| {
        ["aws", "rtx", "dgx-ext"].map(|wanted| {
            let types = applications(&folder).on_types(name);
            let (_, application) = types.iter().find(|(gpu_type, _)| gpu_type.as_str() == wanted).expect("measured");
            application.limits().local_batch_max()
        })
    };
    assert_eq!(largest(ApplicationName::Bert), [12, 12, 48]);
    assert_eq!(largest(ApplicationName::Cifar10), [1024, 1024, 4096]);
    assert_eq!(largest(ApplicationName::Imagenet), [200, 200, 800]);
    assert_eq!(largest(ApplicationName::Yolov3), [16, 8, 32]);
    assert_eq!(largest(ApplicationName::Deepspeech2), [80, 57, 320]);
}

#[test]
fn a_job_alone_is_the_faster_the_faster_its_gpu_is() {
    let Some(folder) = data("speeds of types") else { return };
    let seconds = |gpu_type: &str| {
        let cluster = ClusterSpec::new(vec![group(1, 1, gpu_type)]).expect("a cluster");
        let outcome = run("pollux", cluster, applications(&folder), &alone(ApplicationName::Cifar10));
        outcome.jobs[0].completion_s()
    };
    let [t4, rtx, a100] = ["aws", "rtx", "dgx-ext"].map(seconds);
    assert!(rtx < 0.6 * t4 && a100 < 0.6 * rtx, "{t4} {rtx} {a100}");
}

/// The published simulator has 1951 s for Philly's first workload under Sia, run by us.
#[test]
fn jobs_on_a_mixed_cluster_take_about_as_long_as_published() {
    let Some(folder) = data("completion times on mixed clusters") else { return };
    let workload = read_osdi21(&folder.join("workloads/philly/workload-1.csv")).expect("a workload");
    for (policy, near) in [("sia", 0.95..1.05), ("pollux", 0.8..1.3), ("castor", 0.7..0.9)] {
        let summary = run(policy, mixed(), applications(&folder), &workload).summary();
        assert!(near.contains(&(summary.avg_jct_s / 1951.0)), "{policy} {}", summary.avg_jct_s);
        assert!((0.5..2.5).contains(&summary.rho_max), "{policy} {}", summary.rho_max);
    }
}

/// As run by us with the published simulator.
#[test]
fn sia_takes_as_long_as_published_on_other_workloads() {
    let Some(folder) = data("completion times under Sia") else { return };
    let published = [("philly/workload-3", 2059.0), ("helios/workload-1", 2091.0)];
    for (name, published_s) in published {
        let workload = read_osdi21(&folder.join(format!("workloads/{name}.csv"))).expect("a workload");
        let summary = run("sia", mixed(), applications(&folder), &workload).summary();
        assert!((0.95..1.05).contains(&(summary.avg_jct_s / published_s)), "{name} {}", summary.avg_jct_s);
    }
}

#[test]
fn types_that_nobody_was_measured_on_are_refused() {
    let Some(folder) = data("unknown types") else { return };
    let refused = |groups: Vec<NodeGroup>| {
        let cluster = ClusterSpec::new(groups).expect("a cluster");
        let settings = SimulationSettings::new(PolicySettings::named("pollux").expect("a policy"), cluster);
        let outcome = simulate(&settings, applications(&folder), &alone(ApplicationName::Bert), &mut |_| ());
        outcome.expect_err("nobody knows how fast it is").to_string()
    };
    let known = "aws, azure, dgx-ext, quad, rtx";
    assert_eq!(
        refused(vec![group(1, 4, "aws"), group(1, 4, "h100")]),
        format!("gpu_type h100; expected one that the jobs were measured on: {known}")
    );
    assert_eq!(
        refused(vec![NodeGroup::of_gpus(16, 4)]),
        format!(
            "nodes without a gpu_type; expected a cluster file whose groups have one that the jobs were measured on: {known}"
        )
    );
}

/// The figures that ship are those of the measurements, and a test run tells when they are not.
#[test]
fn profiles_of_types_that_ship_are_fitted_from_the_measurements() {
    let Some(folder) = data("profiles of types") else { return };
    let types = [("azure", "v100"), ("dgx-ext", "a100"), ("rtx", "rtx2080ti")];
    for name in ApplicationName::ALL {
        for (theirs, ours) in types {
            let recorded = Recorded::load_type(name, &folder.join("traces").join(name.as_str()), theirs).unwrap();
            let fitted = OnType::from_recorded(&recorded).unwrap();
            let shipped = Parametric::shipped(name).profile().types[ours];
            assert_eq!(fitted.local_batch_max, shipped.local_batch_max, "{name} {ours}");
            // Powers and logarithms differ in the last digits between machines.
            let near = |(a, b): (f64, f64)| (a / b - 1.0).abs() < 1e-3;
            let (fitted, shipped) = (fitted.throughput.params().to_array(), shipped.throughput.params().to_array());
            assert!(fitted.into_iter().zip(shipped).all(near), "{name} {ours} {fitted:?}");
        }
    }
}

#[test]
fn profiles_that_ship_know_the_usual_types_and_gpus_without_one() {
    for name in ApplicationName::ALL {
        let types: Vec<GpuTypeName> = Parametric::shipped_on_types(name).into_iter().map(|(name, _)| name).collect();
        let names: Vec<&str> = types.iter().map(GpuTypeName::as_str).collect();
        assert_eq!(names, ["a100", "cpu", "gpu", "rtx2080ti", "t4", "v100"]);
    }
}
