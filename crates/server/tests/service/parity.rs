//! The same arrivals, sizes and reports give the same plans on the live scheduler as in the simulator.

use pollux_job::{After, Dependency, Flexibility, JobId, JobSpec, Work};
use pollux_policy::{PolicySettings, Timestamp};
use pollux_sim::{ApplicationName, ApplicationSet, NodeGroup, Script, ScriptedEvent, ScriptedJob, SimulationSettings};

use crate::live;

/// Long enough for everything below to have happened, and for short jobs to end.
const UNTIL: Timestamp = Timestamp(3 * 3_600_000);

fn at_s(seconds: f64) -> Timestamp {
    Timestamp(0).after_s(seconds)
}

fn job(submitted_s: f64, application: ApplicationName, replicas: u32) -> ScriptedJob {
    let spec = JobSpec { work: Some(Work::Epochs(100)), ..JobSpec::new(application.as_str(), replicas) };
    ScriptedJob { submitted: at_s(submitted_s), spec, application, fails_after_s: None }
}

fn with(job: ScriptedJob, change: impl FnOnce(&mut JobSpec)) -> ScriptedJob {
    let mut job = job;
    change(&mut job.spec);
    job
}

/// Elastic jobs, gangs, jobs that keep what they have, priorities, fixed batches, a job that fails, one of several GPUs
/// and CPUs per replica, one that may only run on GPUs of another type, one that reaches its time limit, two that wait
/// for others; nodes that join late, one of another type, one that drains and one that is lost. Groups are resized in
/// place.
fn script(policy: PolicySettings) -> Script {
    use ApplicationName::{Bert, Cifar10, Ncf, Yolov3};
    let cluster = "2x4".parse().expect("a cluster");
    let settings = SimulationSettings {
        restart_delay_s: 17.3,
        resize_delay_s: Some(3.1),
        ..SimulationSettings::new(policy, cluster)
    };
    let jobs = vec![
        job(10.5, Cifar10, 2),
        with(job(35.2, Yolov3, 4), |spec| spec.work = None),
        with(job(95.7, Cifar10, 4), |spec| spec.flexibility = Flexibility::Rigid),
        with(job(200.1, Ncf, 1), |spec| spec.flexibility = Flexibility::NonPreemptible),
        with(job(400.9, Cifar10, 2), |spec| spec.priority = 5),
        with(job(505.3, Cifar10, 2), |spec| spec.batch_size = Some(512)),
        ScriptedJob { fails_after_s: Some(21.7), ..with(job(611.8, Cifar10, 1), |spec| spec.retries = 2) },
        with(job(702.4, Cifar10, 1), |spec| spec.priority = -1),
        with(job(905.6, Bert, 8), |spec| (spec.flexibility, spec.batch_size) = (Flexibility::Rigid, Some(96))),
        job(1_003.9, Ncf, 1),
        with(job(1_222.2, Ncf, 2), |spec| (spec.work, spec.priority) = (None, 1)),
        ScriptedJob { fails_after_s: Some(700.9), ..with(job(1_500.7, Cifar10, 2), |spec| spec.retries = 1) },
        with(job(1_700.3, Cifar10, 1), |spec| (spec.gpus_per_replica, spec.cpus) = (2, Some(3))),
        with(job(1_820.6, Cifar10, 2), |spec| spec.gpu_types = vec!["a100".to_owned()]),
        with(job(2_100.2, Bert, 1), |spec| spec.time_limit = Some(1_500)),
        with(job(2_140.9, Ncf, 1), |spec| spec.depends_on = vec![Dependency { job: JobId(0), after: After::Success }]),
        with(job(2_190.1, Ncf, 1), |spec| spec.depends_on = vec![Dependency { job: JobId(15), after: After::End }]),
        job(4_000.4, Ncf, 3),
    ];
    let a100 = NodeGroup { gpu_type: Some("a100".to_owned()), cpus: Some(8), ..NodeGroup::of_gpus(1, 4) };
    let lines = vec![
        (at_s(1_333.1), ScriptedEvent::Join { node: NodeGroup::of_gpus(1, 4) }),
        (at_s(1_790.2), ScriptedEvent::Join { node: a100 }),
        (at_s(2_521.9), ScriptedEvent::Drain { node: 1 }),
        (at_s(3_600.6), ScriptedEvent::Undrain { node: 1 }),
        (at_s(4_205.3), ScriptedEvent::Pause { job: 1 }),
        (at_s(4_612.4), ScriptedEvent::Resume { job: 1 }),
        (at_s(5_001.7), ScriptedEvent::Lose { node: 0 }),
        (at_s(6_001.7), ScriptedEvent::Join { node: NodeGroup::of_gpus(1, 4) }),
    ];
    Script { settings, jobs, lines }
}

#[test]
fn the_live_scheduler_plans_as_the_simulator_does_under_every_policy_that_it_can_run() {
    let applications = ApplicationSet::parametric();
    let (live, oracle): (Vec<_>, Vec<_>) = PolicySettings::all().into_iter().partition(|policy| !policy.needs_oracle());
    for policy in &live {
        let script = script(policy.clone());
        let simulated = pollux_sim::play(&script, &applications, UNTIL).expect("a simulation").rounds;
        let folder = tempfile::tempdir().unwrap();
        let lived = live::play(&script, &applications, folder.path(), UNTIL);
        let name = policy.name();
        for (idx, (simulated, lived)) in simulated.iter().zip(&lived).enumerate() {
            assert_eq!(lived, simulated, "round {idx} under {name}");
        }
        let common = simulated.len().min(lived.len());
        // Each ends with the first round after the time is up.
        assert!(common > 100 && simulated.len().abs_diff(lived.len()) <= 1, "{name}: {common} rounds");
        let jobs = simulated.iter().flat_map(|round| &round.shares).map(|share| share.job);
        let ran = jobs.collect::<std::collections::BTreeSet<_>>().len();
        println!("{name}: {common} rounds alike, {ran} of {} jobs ran", script.jobs.len());
    }
    let names = |policies: &[PolicySettings]| policies.iter().map(PolicySettings::name).collect::<Vec<_>>().join(", ");
    println!("compared: {}", names(&live));
    println!("in the simulator only, because they need to be told the future: {}", names(&oracle));
    assert_eq!(live.len() + oracle.len(), PolicySettings::all().len());
}
