//! Nobody waits for ever, however many jobs come.

use pollux_job::{Flexibility, JobSpec};
use pollux_policy::{PolicySettings, Timestamp};
use pollux_sim::{ApplicationName, ApplicationSet, ClusterSpec, Script, ScriptedJob, SimRng, SimulationSettings, play};
use proptest::prelude::*;

/// What a policy promises (docs/policies.md): seconds of patience and of a turn, for each time that jobs need more GPUs
/// than there are.
const PATIENCE_S: f64 = 1_800.0;
const TURN_S: f64 = 600.0;
/// Longer than any job below runs that cannot be moved once it is started, its start included.
const PINNED_S: f64 = 7_200.0;
const ROUND_S: f64 = 60.0;
/// Replicas of a job that can never run.
const NEVER: u32 = 4_000;

fn scripted(submitted_s: f64, application: ApplicationName, replicas: u32, flexibility: Flexibility) -> ScriptedJob {
    let spec = JobSpec { flexibility, ..JobSpec::new(application.as_str(), replicas) };
    ScriptedJob { submitted: Timestamp(0).after_s(submitted_s), spec, application, fails_after_s: None }
}

fn script(policy: PolicySettings, cluster: &str, jobs: Vec<ScriptedJob>) -> Script {
    let cluster: ClusterSpec = cluster.parse().expect("a cluster");
    Script { settings: SimulationSettings::new(policy, cluster), jobs, lines: Vec::new() }
}

/// Longest time from submission to the first GPUs, in seconds, if all have started by a moment.
fn longest_wait_s(script: &Script, until: Timestamp) -> f64 {
    let outcome = play(script, &ApplicationSet::parametric(), until).expect("a simulation");
    let can_run = |job: &ScriptedJob| job.spec.fewest() < NEVER;
    let lives = script.jobs.iter().zip(&outcome.jobs).filter(|(job, _)| can_run(job));
    let waits = lives.map(|(job, life)| life.started.map_or(f64::INFINITY, |started| started.since_s(job.submitted)));
    waits.fold(0.0, f64::max)
}

/// Jobs that need up to five times the GPUs there are: elastic ones, and gangs that run for minutes.
fn crowd(seed: u64, jobs: usize, gpus: u32) -> Vec<ScriptedJob> {
    let mut rng = SimRng::new(seed);
    let mut crowd: Vec<ScriptedJob> = (0..jobs)
        .map(|_| {
            let submitted_s = (rng.unit() * 7_200.0).round();
            let application = if rng.unit() < 0.7 { ApplicationName::Cifar10 } else { ApplicationName::Ncf };
            if rng.unit() < 0.2 {
                let replicas = 1 + (rng.unit() * f64::from(gpus / 2)) as u32;
                return scripted(submitted_s, ApplicationName::Ncf, replicas, Flexibility::Rigid);
            }
            let mut job = scripted(submitted_s, application, 1, Flexibility::Elastic);
            job.spec.priority = (rng.unit() * 3.0) as i32;
            job
        })
        .collect();
    crowd.sort_by_key(|job| job.submitted);
    crowd
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn under_the_default_policy_every_job_starts_within_the_stated_time(seed in any::<u64>(), load in 1usize..=5) {
        let gpus = 8;
        let mut jobs = crowd(seed, load * gpus as usize, gpus);
        let needed: u32 = jobs.iter().map(|job| job.spec.fewest()).sum();
        jobs.insert(0, scripted(0.0, ApplicationName::Ncf, NEVER, Flexibility::Rigid));
        let script = script(PolicySettings::default(), "2x4", jobs);
        let crowding = (f64::from(needed) / f64::from(gpus)).max(1.0);
        let bound_s = crowding * (PATIENCE_S + 2.0 * TURN_S) + PINNED_S + 2.0 * ROUND_S;
        let waited_s = longest_wait_s(&script, Timestamp(0).after_s(7_200.0 + bound_s));
        prop_assert!(waited_s <= bound_s, "{waited_s} s of at most {bound_s} s");
    }
}

#[test]
fn a_gang_gets_in_beside_elastic_jobs_of_one_gpu_each() {
    for policy in ["pollux", "castor"] {
        let single = |idx: u32| {
            let mut job = scripted(f64::from(idx), ApplicationName::Cifar10, 1, Flexibility::Elastic);
            job.spec.replicas_max = Some(1);
            job
        };
        let gang = scripted(600.0, ApplicationName::Ncf, 4, Flexibility::Rigid);
        let jobs: Vec<ScriptedJob> = (0..7).map(single).chain([gang]).collect();
        let script = script(PolicySettings::named(policy).expect("a policy"), "2x4", jobs);
        let outcome = play(&script, &ApplicationSet::parametric(), Timestamp(u64::MAX)).expect("a simulation");
        let waited_s = outcome.jobs[7].started.expect("it ran").since_s(script.jobs[7].submitted);
        let patience_s = if policy == "pollux" { 600.0 } else { PATIENCE_S };
        // Eleven GPUs are needed and eight are there.
        assert!(waited_s <= 11.0 / 8.0 * patience_s + 2.0 * ROUND_S, "{policy}: {waited_s} s");
    }
}
