//! What an agent does with what it is shown.

use pollux_agent::{Agent, AgentError, AgentSettings, AgentState, Placement, StepObservation, Tuning};
use pollux_model::{
    BatchLimits, Goodput, GpuType, GradientNorms, LearningRateRule, NoiseStatistics, Parallelism, Shape, StepParams,
    ThroughputModel,
};

const TRUTH: StepParams = StepParams {
    alpha_compute: 0.05,
    beta_compute: 0.001,
    alpha_internode: 0.1,
    beta_internode: 0.002,
    alpha_intranode: 0.02,
    beta_intranode: 0.001,
    gamma: 1.5,
};

fn limits() -> BatchLimits {
    BatchLimits::new(128, 4096, 16, 256).expect("ordered")
}

fn settings() -> AgentSettings {
    AgentSettings { settling_steps: 0, ..AgentSettings::new(limits()) }
}

fn on(nodes: u32, replicas: u32) -> Placement {
    Shape::new(nodes, replicas).expect("valid shape").into()
}

fn truth(parallelism: Parallelism) -> ThroughputModel {
    parallelism.model(TRUTH).expect("within bounds")
}

fn step_of(model: &ThroughputModel, placement: Placement, tuning: Tuning) -> StepObservation {
    let local = f64::from(tuning.local_batch);
    let compute_s = model.params().compute_s(local);
    StepObservation {
        placement,
        local_batch: tuning.local_batch,
        accumulation_steps: tuning.accumulation_steps,
        compute_s,
        sync_s: model.final_step_s(placement.shape, local) - compute_s,
    }
}

fn step(placement: Placement, tuning: Tuning) -> StepObservation {
    step_of(&truth(Parallelism::DataParallel), placement, tuning)
}

/// Norms whose estimates are the given statistics.
fn norms(steps: u32, sqr: f64, var: f64) -> GradientNorms {
    // With two micro-batches of half a baseline batch: mean = sqr + var, micro = sqr + 2·var.
    GradientNorms { steps, micro_batches: 2, batch_size: 128.0, micro_sqr: sqr + 2.0 * var, mean_sqr: sqr + var }
}

/// An agent that ran on one and on four replicas and has seen noisy gradients.
fn trained() -> Agent {
    let mut agent = Agent::new(settings());
    for placement in [on(1, 1), on(1, 4)] {
        for local_batch in [32, 128, 256] {
            agent.observe_step(&step(placement, Tuning { local_batch, accumulation_steps: 1 })).expect("valid step");
        }
    }
    assert!(agent.observe_gradients(&norms(100, 1.0, 20.0)));
    agent
}

#[test]
fn before_anything_is_measured_the_baseline_batch_runs() {
    let mut agent = Agent::new(settings());
    for (placement, expected) in [(on(1, 1), 128), (on(1, 4), 128), (on(2, 8), 128), (on(4, 16), 256)] {
        let tuning = agent.resize(placement).unwrap();
        let batch_size = placement.shape.replicas() * tuning.local_batch * (tuning.accumulation_steps + 1);
        assert_eq!(batch_size, expected, "{placement:?}: {tuning:?}");
    }
    assert!(agent.report().unwrap().types.is_empty());
}

#[test]
fn the_first_steps_after_a_change_are_ignored() {
    let mut agent = Agent::new(AgentSettings::new(limits()));
    let small = Tuning { local_batch: 32, accumulation_steps: 0 };
    let slow = |tuning| StepObservation { compute_s: 50.0, ..step(on(1, 4), tuning) };
    for _ in 0..3 {
        agent.observe_step(&slow(small)).unwrap();
    }
    assert!(agent.report().unwrap().types.is_empty(), "warm-up steps were believed");
    agent.observe_step(&step(on(1, 4), small)).unwrap();
    let model = agent.report().unwrap().types[0].model;

    let larger = Tuning { local_batch: 64, ..small };
    for _ in 0..3 {
        agent.observe_step(&slow(larger)).unwrap();
    }
    assert_eq!(agent.report().unwrap().types[0].model, model, "a change of batch did not start over");
}

#[test]
fn outliers_do_not_move_the_model() {
    let mut agent = trained();
    let usual = step(on(1, 4), Tuning { local_batch: 128, accumulation_steps: 1 });
    (0..5).for_each(|_| agent.observe_step(&usual).unwrap());
    let before = agent.report().unwrap();
    agent.observe_step(&StepObservation { compute_s: usual.compute_s * 40.0, ..usual }).unwrap();
    agent.observe_step(&StepObservation { sync_s: usual.sync_s * 40.0, ..usual }).unwrap();
    assert_eq!(agent.report().unwrap(), before);
}

#[test]
fn a_lasting_change_of_speed_is_learned() {
    let mut agent = trained();
    let placement = on(1, 4);
    let usual = step(placement, Tuning { local_batch: 128, accumulation_steps: 1 });
    let predicted = |agent: &mut Agent| agent.report().unwrap().types[0].model.final_step_s(placement.shape, 128.0);
    let before = predicted(&mut agent);
    for _ in 0..20 {
        agent
            .observe_step(&StepObservation { compute_s: usual.compute_s * 3.0, sync_s: usual.sync_s * 3.0, ..usual })
            .unwrap();
    }
    assert!(predicted(&mut agent) > before * 1.2);
}

#[test]
fn impossible_times_are_refused_and_change_nothing() {
    let mut agent = trained();
    let before = agent.state().clone();
    let usual = step(on(1, 4), Tuning { local_batch: 128, accumulation_steps: 1 });
    for (compute_s, sync_s) in
        [(f64::NAN, 0.1), (0.1, f64::NAN), (-1.0, 0.1), (0.1, -0.05), (0.0, 0.1), (1e300, 0.1), (0.1, f64::INFINITY)]
    {
        let error = agent.observe_step(&StepObservation { compute_s, sync_s, ..usual }).unwrap_err();
        assert!(error.to_string().contains("accepted are"), "{error}");
    }
    assert_eq!(*agent.state(), before);
}

#[test]
fn a_resize_and_an_epochs_end_choose_freely() {
    let mut agent = trained();
    let best = |agent: &mut Agent, placement: Placement| {
        let report = agent.report().unwrap();
        let goodput =
            Goodput { throughput: report.types[0].model, noise: report.noise.unwrap(), limits: report.limits };
        let best = goodput.best(placement.shape).unwrap();
        Tuning { local_batch: best.local_batch, accumulation_steps: best.accumulation_steps }
    };
    let placement = on(1, 4);
    assert_eq!(agent.resize(placement).unwrap(), best(&mut agent, placement));
    // A little more noise: too little to change anything within an epoch, enough at its end.
    agent.observe_gradients(&norms(100_000, 1.0, 21.0));
    assert_eq!(agent.retune().unwrap(), None);
    let at_end = agent.end_epoch().unwrap().unwrap();
    assert_eq!(at_end, best(&mut agent, placement));
    assert_eq!(agent.report().unwrap().progress.epochs, 1);
}

#[test]
fn in_the_middle_of_an_epoch_only_a_gain_of_five_percent_changes_the_batch() {
    let mut agent = trained();
    let placement = on(1, 4);
    let before = agent.resize(placement).unwrap();
    let mut changed_at = None;
    for var in [22.0, 26.0, 30.0, 40.0, 60.0, 100.0, 200.0] {
        agent.observe_gradients(&norms(1_000_000, 1.0, var));
        let report = agent.report().unwrap();
        let goodput =
            Goodput { throughput: report.types[0].model, noise: report.noise.unwrap(), limits: report.limits };
        let current = goodput.evaluate(placement.shape, before.local_batch, before.accumulation_steps).unwrap();
        let gain = goodput.best(placement.shape).unwrap().goodput / current.goodput - 1.0;
        let retuned = agent.retune().unwrap();
        assert_eq!(retuned.is_some(), gain >= 0.05, "noise {var}: gain {gain}");
        if retuned.is_some() {
            changed_at = Some(var);
            break;
        }
    }
    assert!(changed_at.is_some_and(|var| var > 22.0), "{changed_at:?}");
}

#[test]
fn everything_learned_comes_back_in_another_process_at_another_size() {
    let mut agent = trained();
    agent.resize(on(1, 4)).unwrap();
    agent.advance(1_000);
    agent.end_epoch().unwrap();
    let text = serde_json::to_string(agent.state()).unwrap();

    let state: AgentState = serde_json::from_str(&text).unwrap();
    assert_eq!(state, *agent.state(), "nothing is lost or rounded");
    let mut restored = Agent::restore(settings(), state).unwrap();
    assert_eq!(restored.report().unwrap(), agent.report().unwrap());
    assert_eq!(restored.resize(on(2, 8)).unwrap(), agent.resize(on(2, 8)).unwrap());
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let saved = serde_json::to_string(trained().state()).unwrap();
    let restore = |text: String, limits: BatchLimits| {
        let state: AgentState = serde_json::from_str(&text).unwrap();
        Agent::restore(AgentSettings::new(limits), state).map(|_| ()).unwrap_err()
    };
    assert_eq!(
        restore(saved.replace(r#""version":1"#, r#""version":9"#), limits()),
        AgentError::StateVersion { found: 9, supported: 1 }
    );
    assert_eq!(
        restore(saved.clone(), BatchLimits::new(64, 4096, 16, 256).unwrap()).to_string(),
        "agent state of baseline batch 128: this job's baseline is 64; keep it, or start afresh"
    );
    assert_eq!(
        restore(saved.replace(r#""baseline_steps":0.0"#, r#""baseline_steps":-3.0"#), limits()),
        AgentError::Progress { value: -3.0 }
    );
}

#[test]
fn kinds_of_gpus_are_profiled_apart() {
    let mut agent = trained();
    let fast = Placement { gpu_type: GpuType(1), ..on(1, 2) };
    let tuning = Tuning { local_batch: 64, accumulation_steps: 0 };
    let usual = step(fast, tuning);
    agent
        .observe_step(&StepObservation { compute_s: usual.compute_s / 10.0, sync_s: usual.sync_s / 10.0, ..usual })
        .unwrap();
    let types = agent.report().unwrap().types;
    assert_eq!(
        types.iter().map(|kind| (kind.gpu_type.0, kind.replicas_profiled)).collect::<Vec<_>>(),
        [(0, 4), (1, 2)]
    );
    let step_s = |idx: usize| types[idx].model.final_step_s(fast.shape, 64.0);
    assert!(step_s(1) < step_s(0) / 5.0);
}

#[test]
fn progress_counts_what_steps_are_worth() {
    let mut agent = trained();
    let tuning = agent.resize(on(1, 4)).unwrap();
    let batch_size = 4 * tuning.local_batch * (tuning.accumulation_steps + 1);
    agent.advance(10);
    let progress = agent.report().unwrap().progress;
    let gain = NoiseStatistics::new(1.0, 20.0).unwrap().gain(f64::from(batch_size) / 128.0);
    assert_eq!((progress.steps, progress.samples), (10, 10 * u64::from(batch_size)));
    assert!((progress.baseline_steps - 10.0 * gain).abs() < 1e-6, "{progress:?}");
    assert!((agent.learning_rate_factor().unwrap() - gain).abs() < 1e-6, "AdaScale's factor is the gain");
}

#[test]
fn a_rule_in_epochs_follows_the_samples_of_an_epoch() {
    let settings = AgentSettings {
        learning_rate: LearningRateRule::Legw { warmup_epochs: 1.0 },
        epoch_samples: Some(12_800),
        ..settings()
    };
    let mut agent = Agent::new(settings);
    agent.resize(on(1, 4)).unwrap();
    agent.advance(50);
    assert_eq!(agent.learning_rate_factor(), Ok(0.5));
}

/// A second throughput model, through the same agent: what it learns, chooses and reports needs no line of its own.
#[test]
fn another_parallelism_plugs_in_below_the_agent() {
    let placement = on(1, 4);
    let check = |parallelism: Parallelism| {
        let model = truth(parallelism);
        let mut agent = Agent::new(AgentSettings { parallelism, ..settings() });
        for at in [on(1, 1), on(1, 2), placement] {
            for local_batch in [32, 128, 256] {
                agent.observe_step(&step_of(&model, at, Tuning { local_batch, accumulation_steps: 0 })).unwrap();
            }
        }
        agent.observe_gradients(&norms(100, 1.0, 6.0));
        let tuning = agent.resize(placement).unwrap();
        let report = agent.report().unwrap();
        assert_eq!(std::mem::discriminant(&report.types[0].model), std::mem::discriminant(&model));
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<pollux_agent::AgentReport>(&text).unwrap(), report);
        for accumulation_steps in [0.0, 3.0] {
            let step_s = |model: &ThroughputModel| model.step_s(placement.shape, 64.0, accumulation_steps);
            let (found, known) = (step_s(&report.types[0].model), step_s(&model));
            assert!((found / known - 1.0).abs() < 0.05, "{parallelism:?}: {found} s, in truth {known} s");
        }
        assert!(limits().allow(placement.shape, tuning.local_batch, tuning.accumulation_steps));
    };
    check(Parallelism::DataParallel);
    check(Parallelism::Sharded);
    // Sharded micro-batches each pay for communication, so accumulating is dearer than in the replicated case.
    let four_micro_batches = |kind| truth(kind).step_s(placement.shape, 32.0, 3.0);
    assert!(four_micro_batches(Parallelism::Sharded) > four_micro_batches(Parallelism::DataParallel));
}

#[test]
fn a_report_tells_the_samples_of_an_epoch() {
    let mut agent = Agent::new(AgentSettings { epoch_samples: Some(50_000), ..settings() });
    assert_eq!(agent.report().unwrap().epoch_samples, Some(50_000));
}
