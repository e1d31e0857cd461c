//! Forecasts of jobs on types of GPU where they never ran.

use pollux_agent::{AgentReport, Progress, TypeReport};
use pollux_engine::{Command, Engine, EngineSettings, Event};
use pollux_job::{JobSpec, Work};
use pollux_model::{BatchLimits, GpuTypeName, NoiseStatistics, StepParams, ThroughputModel};
use pollux_policy::{JobId, NodeId, PolicySettings};

use super::{Change, LiveCluster, completion_s, predicted};

/// What an agent tells that measured these seconds of compute for a step of 100 samples, by type.
fn report(types: &[(&str, f64)]) -> AgentReport {
    let learned = |&(name, seconds): &(&str, f64)| {
        let params = StepParams { alpha_compute: seconds, gamma: 2.0, ..StepParams::from_array([1e-6; 7]) };
        TypeReport {
            gpu_type: GpuTypeName::new(name).unwrap(),
            model: ThroughputModel::DataParallel(params),
            replicas_profiled: 1,
            local_batch_max: None,
        }
    };
    AgentReport {
        limits: BatchLimits::new(100, 100, 100, 100).unwrap(),
        types: types.iter().map(learned).collect(),
        noise: NoiseStatistics::new(1.0, 1.0).ok(),
        progress: Progress::default(),
        epoch_samples: None,
        samples_per_s: None,
        loss: None,
        tuning: None,
        learning_rate_factor: 1.0,
    }
}

/// A cluster of one GPU of `t4` and one of `a100`, whose first job was measured on both and whose second only on `t4`.
fn cluster() -> LiveCluster {
    let (settings, policy) = (EngineSettings::default(), PolicySettings::named("pollux").unwrap());
    let mut engine = Engine::new(settings, &policy).unwrap();
    let step = |engine: &mut Engine, event: Event| {
        let (at, mut out) = (engine.now(), Vec::new());
        engine.step(at, event, &mut out);
        assert!(!out.iter().any(|command| matches!(command, Command::Refused(_))), "{out:?}");
    };
    let round = |engine: &mut Engine| {
        let (at, mut out) = (engine.next_wakeup().unwrap(), Vec::new());
        engine.step(at, Event::Tick, &mut out);
    };
    for (node, name) in [(0, "t4"), (1, "a100")] {
        let gpu_type = GpuTypeName::new(name).unwrap();
        step(&mut engine, Event::NodeJoined { node: NodeId(node), gpus: 1, gpu_type, cpus: None, memory: None });
    }
    let jobs = [(JobId(1), &[("a100", 0.1), ("t4", 0.4)][..]), (JobId(2), &[("t4", 0.8)])];
    for (job, _) in jobs {
        let spec = JobSpec { work: Some(Work::BaselineSteps(10_000)), replicas_max: Some(1), ..JobSpec::new("job", 1) };
        step(&mut engine, Event::JobSubmitted { job, spec });
    }
    round(&mut engine);
    for (job, types) in jobs {
        let revision = engine.job(job).unwrap().revision();
        step(&mut engine, Event::GroupReady { job, revision, pause_s: None });
        step(&mut engine, Event::Report { job, revision, report: report(types) });
    }
    round(&mut engine);
    LiveCluster { now: engine.now(), state: engine.state(), settings, policy }
}

#[test]
fn a_type_that_a_job_never_ran_on_is_as_fast_for_it_as_others_found_it() {
    let cluster = cluster();
    let alone_without = |node: u32| {
        let changes = [Change::Cancel(JobId(1)), Change::Drain(NodeId(node))];
        completion_s(&predicted(&cluster, &changes), 2).unwrap()
    };
    let (on_t4, on_a100) = (alone_without(1), alone_without(0));
    assert!((7_000.0..9_000.0).contains(&on_t4), "10,000 steps of 0.8 s: {on_t4}");
    assert!((1_900.0..2_300.0).contains(&on_a100), "four times as fast, after a move: {on_a100}");
}

#[test]
fn more_nodes_of_a_faster_type_end_jobs_sooner_than_more_of_a_slower_one() {
    let cluster = cluster();
    let with = |name: &str| {
        let gpu_type = GpuTypeName::new(name).unwrap();
        let forecast = predicted(&cluster, &[Change::AddNodes { count: 1, gpus: 1, gpu_type }]);
        [1, 2].map(|job| completion_s(&forecast, job).unwrap()).iter().sum::<f64>()
    };
    let (slower, faster) = (with("t4"), with("a100"));
    assert!(faster < 0.9 * slower, "{faster} {slower}");
}
