//! What an agent does with what it is shown.

use pollux_agent::{
    Agent, AgentError, AgentSettings, AgentState, Evidence, Placement, Progress, StepObservation, Tuning,
};
use pollux_model::{
    BatchLimits, BatchMode, Goodput, GpuTypeName, GradientNorms, LearningRateRule, LossCurve, ModelError,
    NoiseStatistics, Parallelism, Shape, StepParams, ThroughputModel,
};
use serde_json::{Value, json};

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
    AgentSettings { settling_steps: 0, evidence: Evidence::KNOWN, ..AgentSettings::new(limits()) }
}

fn on(nodes: u32, replicas: u32) -> Placement {
    Shape::new(nodes, replicas).expect("valid shape").into()
}

fn truth(parallelism: Parallelism) -> ThroughputModel {
    parallelism.model(TRUTH).expect("within bounds")
}

fn step_of(model: &ThroughputModel, placement: &Placement, tuning: Tuning) -> StepObservation {
    let local = f64::from(tuning.local_batch);
    let compute_s = model.params().compute_s(local);
    StepObservation {
        placement: placement.clone(),
        local_batch: tuning.local_batch,
        accumulation_steps: tuning.accumulation_steps,
        compute_s,
        sync_s: model.final_step_s(placement.shape, local) - compute_s,
    }
}

#[allow(clippy::needless_pass_by_value, reason = "most callers make it in place")]
fn step(placement: Placement, tuning: Tuning) -> StepObservation {
    step_of(&truth(Parallelism::DataParallel), &placement, tuning)
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
            agent
                .observe_step(&step(placement.clone(), Tuning { local_batch, accumulation_steps: 1 }))
                .expect("valid step");
        }
    }
    assert!(agent.observe_gradients(&norms(100, 1.0, 20.0)));
    agent
}

#[test]
fn before_anything_is_measured_the_baseline_batch_runs() {
    let mut agent = Agent::new(settings());
    for (placement, expected) in [(on(1, 1), 128), (on(1, 4), 128), (on(2, 8), 128), (on(4, 16), 256)] {
        let tuning = agent.resize(placement.clone()).unwrap();
        let batch_size = placement.shape.replicas() * tuning.local_batch * (tuning.accumulation_steps + 1);
        assert_eq!(batch_size, expected, "{placement:?}: {tuning:?}");
    }
    assert!(agent.report().types.is_empty());
}

#[test]
fn the_first_steps_after_a_change_are_ignored() {
    let mut agent = Agent::new(AgentSettings::new(limits()));
    let small = Tuning { local_batch: 32, accumulation_steps: 0 };
    let slow = |tuning| StepObservation { compute_s: 50.0, ..step(on(1, 4), tuning) };
    for _ in 0..3 {
        agent.observe_step(&slow(small)).unwrap();
    }
    assert!(agent.report().types.is_empty(), "warm-up steps were believed");
    agent.observe_step(&step(on(1, 4), small)).unwrap();
    let model = agent.report().types[0].model;

    let larger = Tuning { local_batch: 64, ..small };
    for _ in 0..3 {
        agent.observe_step(&slow(larger)).unwrap();
    }
    assert_eq!(agent.report().types[0].model, model, "a change of batch did not start over");
}

#[test]
fn a_resize_to_the_same_shape_settles_anew() {
    let mut agent = Agent::new(AgentSettings::new(limits()));
    let tuning = agent.resize(on(1, 4)).unwrap();
    let usual = step(on(1, 4), tuning);
    (0..4).for_each(|_| agent.observe_step(&usual).unwrap());
    let learned = agent.report();
    assert_eq!(learned.types.len(), 1);

    assert_eq!(agent.resize(on(1, 4)).unwrap(), tuning);
    let slow = StepObservation { compute_s: 50.0, ..usual.clone() };
    (0..3).for_each(|_| agent.observe_step(&slow).unwrap());
    assert_eq!(agent.report(), learned, "the first steps of new processes were believed");
}

#[test]
fn noise_is_not_trusted_before_ten_measurements() {
    let mut agent = Agent::new(AgentSettings::new(limits()));
    // However many steps passed between them.
    (0..9).for_each(|_| assert!(agent.observe_gradients(&norms(1_000, 1.0, 20.0))));
    assert_eq!((agent.report().noise, agent.likely_noise()), (None, None));
    agent.observe_gradients(&norms(1, 1.0, 20.0));
    let noise = agent.report().noise.unwrap();
    assert!((noise.var() / noise.sqr() - 20.0).abs() < 1e-9, "{noise:?}");
}

/// An agent on four replicas, as in a real training, that knows how long steps take.
fn measuring() -> Agent {
    let settings = AgentSettings { evidence: Evidence::MEASURED, ..settings() };
    let mut agent = Agent::restore(settings, Agent::new(self::settings()).state().clone()).expect("its own state");
    for local_batch in [32, 128, 256] {
        agent.observe_step(&step(on(1, 4), Tuning { local_batch, accumulation_steps: 0 })).expect("valid step");
    }
    agent.resize(on(1, 4)).expect("feasible");
    agent
}

fn batch_size(tuning: Tuning) -> u32 {
    4 * tuning.local_batch * (tuning.accumulation_steps + 1)
}

#[test]
fn a_batch_grows_by_steps_each_of_which_is_measured() {
    let mut agent = measuring();
    let mut batches = Vec::new();
    for _ in 0..60 {
        agent.observe_gradients(&norms(1, 1.0, 10_000.0));
        batches.extend(agent.retune().unwrap().map(batch_size));
    }
    assert_eq!(batches, [512, 2048]);
    // A new process goes on with what the one before had come to.
    let settings = AgentSettings { evidence: Evidence::MEASURED, ..settings() };
    let mut restored = Agent::restore(settings, agent.state().clone()).unwrap();
    assert_eq!(restored.resize(on(1, 4)).unwrap(), agent.resize(on(1, 4)).unwrap());
}

#[test]
fn gradients_without_any_signal_are_no_licence_for_a_large_batch() {
    let mut agent = measuring();
    // The signal is 0 on average, but what it is made of varies: it may well be larger.
    for idx in 0..40 {
        let sqr = if idx % 2 == 0 { 15.0 } else { -15.0 };
        agent.observe_gradients(&norms(1, sqr, 20.0));
    }
    assert_eq!(agent.likely_noise().unwrap().noise_scale(128), None, "the most likely noise scale is infinite");
    let certain = agent.noise().unwrap().noise_scale(128).unwrap();
    assert!(certain < 1_200.0, "{certain}");
    for _ in 0..5 {
        agent.retune().unwrap();
    }
    assert!(agent.report().tuning.map(batch_size).unwrap() <= 512);
    assert!(agent.gain() < 3.0);
}

#[test]
fn a_data_set_bounds_the_batch() {
    let mut agent = trained();
    agent.resize(on(1, 4)).unwrap();
    agent.bound_batch_size(320);
    assert_eq!(agent.report().limits.batch_size_max(), 320);
    assert!(agent.retune().unwrap().map(batch_size).unwrap() <= 320);
    agent.bound_batch_size(1);
    assert_eq!(agent.report().limits.batch_size_max(), 128, "the baseline batch is always allowed");
}

#[test]
fn outliers_do_not_move_the_model() {
    let mut agent = trained();
    let usual = step(on(1, 4), Tuning { local_batch: 128, accumulation_steps: 1 });
    (0..5).for_each(|_| agent.observe_step(&usual).unwrap());
    let before = agent.report();
    agent.observe_step(&StepObservation { compute_s: usual.compute_s * 40.0, ..usual.clone() }).unwrap();
    agent.observe_step(&StepObservation { sync_s: usual.sync_s * 40.0, ..usual.clone() }).unwrap();
    assert_eq!(agent.report(), before);
}

#[test]
fn a_lasting_change_of_speed_is_learned() {
    let mut agent = trained();
    let placement = on(1, 4);
    let usual = step(placement.clone(), Tuning { local_batch: 128, accumulation_steps: 1 });
    let predicted = |agent: &mut Agent| agent.report().types[0].model.final_step_s(placement.shape, 128.0);
    let before = predicted(&mut agent);
    for _ in 0..20 {
        agent
            .observe_step(&StepObservation {
                compute_s: usual.compute_s * 3.0,
                sync_s: usual.sync_s * 3.0,
                ..usual.clone()
            })
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
        let error = agent.observe_step(&StepObservation { compute_s, sync_s, ..usual.clone() }).unwrap_err();
        assert!(error.to_string().contains("expected"), "{error}");
    }
    assert_eq!(*agent.state(), before);
}

fn known_goodput(agent: &mut Agent) -> Goodput {
    let report = agent.report();
    Goodput { throughput: report.types[0].model, noise: report.noise.expect("measured"), limits: report.limits }
}

#[test]
fn a_resize_chooses_freely_and_so_does_an_epochs_end_that_asks_for_no_gain() {
    let state = trained().state().clone();
    let mut agent = Agent::restore(AgentSettings { epoch_gain_min: 0.0, ..settings() }, state).unwrap();
    let best = |agent: &mut Agent, placement: Placement| {
        let best = known_goodput(agent).best(placement.shape).unwrap();
        Tuning { local_batch: best.local_batch, accumulation_steps: best.accumulation_steps }
    };
    let placement = on(1, 4);
    let before = agent.resize(placement.clone()).unwrap();
    assert_eq!(before, best(&mut agent, placement.clone()));
    // A little more noise: too little to change anything within an epoch, enough at its end.
    agent.observe_gradients(&norms(100_000, 1.0, 21.0));
    assert_eq!(agent.retune().unwrap(), None);
    let at_end = agent.end_epoch().unwrap().unwrap();
    assert_eq!(at_end, best(&mut agent, placement.clone()));
    assert_ne!(at_end, before);
    assert_eq!(agent.report().progress.epochs, 1);
}

/// Raises the noise until the batch changes, which it must where the gain is `gain_min` and not before.
fn check_gain_that_changes_the_batch(gain_min: f64, ask: impl Fn(&mut Agent, Tuning) -> bool) {
    let mut agent = trained();
    let placement = on(1, 4);
    let before = agent.resize(placement.clone()).expect("feasible");
    let mut changed_at = None;
    for var in [21.0, 22.0, 24.0, 26.0, 30.0, 40.0, 60.0, 100.0, 200.0] {
        agent.observe_gradients(&norms(1_000_000, 1.0, var));
        let goodput = known_goodput(&mut agent);
        let current = goodput.evaluate(placement.shape, before.local_batch, before.accumulation_steps);
        let current = current.expect("within the limits");
        let gain = goodput.best(placement.shape).expect("feasible").goodput / current.goodput - 1.0;
        let changed = ask(&mut agent, before);
        assert_eq!(changed, gain >= gain_min, "noise {var}: gain {gain}");
        if changed {
            changed_at = Some(var);
            break;
        }
        assert!(gain > 0.0, "noise {var} makes no difference");
    }
    assert!(changed_at.is_some_and(|var| var > 22.0), "{changed_at:?}");
}

#[test]
fn in_the_middle_of_an_epoch_only_a_gain_of_five_percent_changes_the_batch() {
    check_gain_that_changes_the_batch(0.05, |agent, _| agent.retune().unwrap().is_some());
}

#[test]
fn at_the_end_of_an_epoch_only_a_gain_of_two_percent_changes_the_batch() {
    check_gain_that_changes_the_batch(0.02, |agent, before| agent.end_epoch().unwrap() != Some(before));
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
    assert_eq!(restored.report(), agent.report());
    assert_eq!(restored.resize(on(2, 8)).unwrap(), agent.resize(on(2, 8)).unwrap());
}

/// What an agent answers to the state of a trained one, changed by `change`.
fn restore_changed(change: impl FnOnce(&mut Value)) -> Result<Agent, AgentError> {
    let mut agent = trained();
    agent.resize(on(1, 4)).expect("feasible");
    let mut state = serde_json::to_value(agent.state()).expect("plain data");
    change(&mut state);
    Agent::restore(settings(), serde_json::from_value(state).expect("a state in form"))
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let restore = |change: fn(&mut Value)| restore_changed(change).map(|_| ()).unwrap_err();
    assert_eq!(
        restore(|state| state["noise"]["batch_size_baseline"] = json!(64)).to_string(),
        "agent state of baseline batch 64: this job's baseline is 128; keep it, or start afresh"
    );
    assert_eq!(
        restore(|state| state["progress"]["baseline_steps"] = json!(-3.0)),
        AgentError::Progress { value: -3.0 }
    );
}

#[test]
fn a_state_of_another_version_is_learned_anew_and_keeps_its_progress() {
    let learned = restore_changed(|_| ()).unwrap().report();
    let changes: [fn(&mut Value); 4] = [
        |state| state["version"] = json!(9),
        |state| state["noise"] = json!("told otherwise"),
        |state| state["profiles"] = json!({"a100": []}),
        |state| drop(state.as_object_mut().unwrap().remove("losses")),
    ];
    for change in changes {
        let mut relearning = restore_changed(change).unwrap();
        assert!(relearning.relearns());
        let relearning = relearning.report();
        assert_eq!((relearning.types, relearning.noise, relearning.tuning), (Vec::new(), None, None));
        assert_eq!(relearning.progress, learned.progress);
    }
}

#[test]
fn a_state_that_numbers_types_keeps_all_but_what_was_measured_on_them() {
    let learned = restore_changed(|_| ()).unwrap().report();
    let restored = restore_changed(|state| {
        state["profiles"][0]["gpu_type"] = json!(0);
        state["running"]["placement"]["gpu_type"] = json!(0);
        state["later"] = json!("a field that is not known");
    });
    let mut restored = restored.unwrap();
    assert!(restored.relearns());
    let restored = restored.report();
    assert_eq!((restored.noise, restored.progress, restored.types), (learned.noise, learned.progress, Vec::new()));
}

#[test]
fn a_state_that_says_nothing_known_is_that_of_a_new_agent() {
    let state = serde_json::from_value(json!({"brain": {"size": 3}, "progress": "far"})).unwrap();
    let mut agent = Agent::restore(settings(), state).unwrap();
    assert!(agent.relearns());
    assert_eq!(agent.report(), Agent::new(settings()).report());
    assert!(!restore_changed(|_| ()).unwrap().relearns(), "its own state is no news");
}

#[test]
fn a_batch_that_the_user_fixed_is_kept_whatever_was_learned() {
    let fixed = |batch_size| AgentSettings { batch_mode: BatchMode::Fixed { batch_size }, ..settings() };
    let size = |tuning: Tuning, replicas| replicas * tuning.local_batch * (tuning.accumulation_steps + 1);
    let mut agent = Agent::restore(fixed(Some(256)), trained().state().clone()).unwrap();
    assert_eq!(size(agent.resize(on(1, 4)).unwrap(), 4), 256);
    assert_eq!(agent.retune().unwrap(), None);
    assert_eq!(size(agent.end_epoch().unwrap().unwrap(), 4), 256);
    agent.set_batch_mode(BatchMode::Fixed { batch_size: None });
    assert_eq!(size(agent.retune().unwrap().unwrap(), 4), 128, "the baseline");
    agent.set_batch_mode(BatchMode::Adaptive);
    assert!(size(agent.retune().unwrap().unwrap(), 4) > 256, "the noise allows more");
}

#[test]
fn a_profile_that_no_agent_would_write_is_refused() {
    fn cells(state: &mut Value) -> &mut Vec<Value> {
        state["profiles"][0]["cells"].as_array_mut().unwrap()
    }
    let restore = |change: fn(&mut Value)| restore_changed(change).map(|_| ()).unwrap_err();
    let order = AgentError::CellOrder { nodes: 1, replicas: 1, local_batch: 32 };
    let times = |compute, sync| AgentError::CellTimes { compute, sync, local_batch: 32, replicas: 1, limit: 15 };

    assert_eq!(restore(|state| cells(state).swap(0, 1)), order);
    assert_eq!(
        restore(|state| {
            let twice = cells(state)[0].clone();
            cells(state).insert(0, twice);
        }),
        order
    );
    assert_eq!(
        restore(|state| {
            let cell = cells(state)[0].clone();
            let many = (1..=513).map(|local_batch| {
                let mut cell = cell.clone();
                cell["local_batch"] = json!(local_batch);
                cell
            });
            *cells(state) = many.collect();
        }),
        AgentError::CellCount { cells: 513, limit: 512 }
    );
    assert_eq!(restore(|state| cells(state)[0]["sync_s"] = json!([])), times(1, 0));
    assert_eq!(
        restore(|state| {
            cells(state)[0]["compute_s"] = json!([]);
            cells(state)[0]["sync_s"] = json!([]);
        }),
        times(0, 0)
    );
    assert_eq!(
        restore(|state| {
            cells(state)[0]["compute_s"] = json!(vec![0.1; 16]);
            cells(state)[0]["sync_s"] = json!(vec![0.0; 16]);
        }),
        times(16, 16)
    );
    // One bad time among good ones, which the median would hide.
    assert!(matches!(
        restore(|state| {
            cells(state)[0]["compute_s"] = json!([0.1, 0.1, -0.1]);
            cells(state)[0]["sync_s"] = json!([0.0, 0.0, 0.0]);
        }),
        AgentError::Model(ModelError::StepTime { .. })
    ));
    assert_eq!(
        restore(|state| {
            let twice = state["profiles"][0].clone();
            state["profiles"].as_array_mut().unwrap().push(twice);
        }),
        AgentError::ProfileOrder { gpu_type: GpuTypeName::default() }
    );
}

#[test]
fn a_tuning_that_no_limits_allow_is_refused() {
    let restore = |local_batch: u32, accumulation_steps: u32, replicas: u32| {
        restore_changed(|state| {
            state["running"]["tuning"] = json!({"local_batch": local_batch, "accumulation_steps": accumulation_steps});
            state["running"]["placement"]["shape"] = json!({"nodes": 1, "replicas": replicas});
        })
        .map(|_| ())
    };
    for (local_batch, accumulation_steps, replicas) in
        [(0, 0, 1), (1, u32::MAX, 1), (1 << 16, 0, 1 << 16), (u32::MAX, u32::MAX, u32::MAX)]
    {
        assert_eq!(
            restore(local_batch, accumulation_steps, replicas),
            Err(AgentError::Tuning { local_batch, accumulation_steps, replicas })
        );
    }
    assert_eq!(restore(512, 9, 2), Ok(()), "limits may have become tighter since");
}

#[test]
fn counters_stop_at_their_largest_number() {
    let mut agent = restore_changed(|state| {
        state["progress"]["epochs"] = json!(u32::MAX);
        state["profiles"][0]["recorded"] = json!(u64::MAX);
    })
    .unwrap();
    agent.observe_step(&step(on(1, 4), Tuning { local_batch: 128, accumulation_steps: 1 })).unwrap();
    agent.end_epoch().unwrap();
    agent.advance(1 << 60);
    agent.advance(u64::MAX);
    let progress = agent.report().progress;
    assert_eq!((progress.steps, progress.samples, progress.epochs), (u64::MAX, u64::MAX, u32::MAX));
    assert!(progress.baseline_steps.is_finite());
}

#[test]
fn before_a_job_is_placed_nothing_counts() {
    let mut agent = trained();
    agent.advance(10);
    assert_eq!(agent.end_epoch(), Ok(None));
    assert_eq!(agent.report().progress, Progress::default());
}

#[test]
fn an_epoch_counts_only_once_a_batch_is_chosen_for_the_next() {
    let mut agent = trained();
    agent.resize(on(4, 16)).unwrap();
    // The limits shrank: 16 replicas of at least 16 samples are more than 200.
    let settings = AgentSettings { limits: BatchLimits::new(128, 200, 16, 256).unwrap(), ..settings() };
    let mut restored = Agent::restore(settings, agent.state().clone()).unwrap();
    assert!(matches!(restored.end_epoch(), Err(AgentError::Model(ModelError::NoFeasibleBatch { .. }))));
    assert_eq!(restored.report().progress.epochs, 0);
    restored.resize(on(1, 4)).unwrap();
    restored.end_epoch().unwrap();
    assert_eq!(restored.report().progress.epochs, 1);
}

#[test]
fn a_job_restored_with_another_parallelism_gets_its_model() {
    let mut agent = trained();
    agent.report();
    let settings = AgentSettings { parallelism: Parallelism::Sharded, ..settings() };
    let mut restored = Agent::restore(settings, agent.state().clone()).unwrap();
    let model = restored.report().types[0].model;
    assert_eq!(model.parallelism(), Parallelism::Sharded);
    let expected = truth(Parallelism::Sharded).final_step_s(on(1, 4).shape, 128.0);
    let predicted = model.final_step_s(on(1, 4).shape, 128.0);
    assert!((predicted / expected - 1.0).abs() < 0.05, "{predicted} s, in truth {expected} s");
}

#[test]
fn beyond_the_limit_the_configuration_unseen_for_longest_is_forgotten() {
    let mut agent = Agent::new(settings());
    let observe = |agent: &mut Agent, local_batch| {
        agent.observe_step(&step(on(1, 2), Tuning { local_batch, accumulation_steps: 0 })).unwrap();
    };
    let kept = |agent: &Agent| {
        let state = serde_json::to_value(agent.state()).unwrap();
        let cells = state["profiles"][0]["cells"].as_array().unwrap();
        cells.iter().map(|cell| cell["local_batch"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    (1..=512).for_each(|local_batch| observe(&mut agent, local_batch));
    observe(&mut agent, 1);
    assert_eq!(kept(&agent), (1..=512).collect::<Vec<_>>());
    observe(&mut agent, 600);
    assert_eq!(kept(&agent), std::iter::once(1).chain(3..=512).chain([600]).collect::<Vec<_>>());
}

#[test]
fn a_learning_rate_rule_that_fails_keeps_no_report_from_the_scheduler() {
    let learned = trained().report();
    for nonsense in [f64::NAN, -1.0, f64::INFINITY] {
        let settings = AgentSettings { learning_rate: LearningRateRule::custom(move |_| nonsense), ..settings() };
        let mut agent = Agent::restore(settings, trained().state().clone()).unwrap();
        assert!(agent.learning_rate_factor().is_err(), "the trainer must hear of it");
        assert_eq!(agent.report(), learned);
    }
}

#[test]
fn kinds_of_gpus_are_profiled_apart() {
    let mut agent = trained();
    let fast = Placement { gpu_type: GpuTypeName::new("h100").unwrap(), ..on(1, 2) };
    let tuning = Tuning { local_batch: 64, accumulation_steps: 0 };
    let usual = step(fast.clone(), tuning);
    agent
        .observe_step(&StepObservation {
            compute_s: usual.compute_s / 10.0,
            sync_s: usual.sync_s / 10.0,
            ..usual.clone()
        })
        .unwrap();
    let types = agent.report().types;
    assert_eq!(
        types.iter().map(|kind| (kind.gpu_type.as_str(), kind.replicas_profiled)).collect::<Vec<_>>(),
        [("gpu", 4), ("h100", 2)]
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
    let progress = agent.report().progress;
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
        for at in [on(1, 1), on(1, 2), placement.clone()] {
            for local_batch in [32, 128, 256] {
                agent.observe_step(&step_of(&model, &at, Tuning { local_batch, accumulation_steps: 0 })).unwrap();
            }
        }
        agent.observe_gradients(&norms(100, 1.0, 6.0));
        let tuning = agent.resize(placement.clone()).unwrap();
        let report = agent.report();
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
    assert_eq!(agent.report().epoch_samples, Some(50_000));
}

#[test]
fn progress_under_a_batch_that_the_user_fixed_is_counted_at_that_batch() {
    let mut agent = trained();
    agent.run_fixed(on(1, 4), Tuning { local_batch: 32, accumulation_steps: 0 });
    agent.advance(10);
    let progress = agent.report().progress;
    assert_eq!((progress.steps, progress.samples), (10, 10 * 128));
    assert!((progress.baseline_steps - 10.0).abs() < 1e-9, "{progress:?}");
}

#[test]
fn the_rate_is_that_of_what_runs_now() {
    let mut agent = trained();
    agent.observe_rate(800.0).unwrap();
    assert_eq!(
        agent.observe_rate(f64::NAN).unwrap_err().to_string(),
        "NaN samples per second: expected finite numbers above 0"
    );
    assert!(agent.observe_rate(0.0).is_err());
    assert_eq!(agent.report().samples_per_s, Some(800.0));
    agent.observe_rate(500.0).unwrap();
    assert_eq!(agent.report().samples_per_s, Some(500.0));
    agent.resize(on(1, 2)).unwrap();
    assert_eq!(agent.report().samples_per_s, None);
}

#[test]
fn losses_become_a_curve_over_progress_that_outlives_the_process() {
    let mut agent = trained();
    agent.resize(on(1, 4)).unwrap();
    let truth = LossCurve::new(0.01, 0.4, 0.2).unwrap();
    for _ in 0..100 {
        agent.advance(7);
        let now = agent.report().progress.baseline_steps;
        agent.observe_loss(truth.at(now)).unwrap();
    }
    assert!(agent.observe_loss(f64::NAN).is_err() && agent.observe_loss(-1.0).is_err());
    let report = agent.report();
    let curve = report.loss.expect("a hundred losses say enough");
    let ahead = 2.0 * report.progress.baseline_steps;
    assert!((curve.at(ahead) / truth.at(ahead) - 1.0).abs() < 0.05, "{curve:?}");
    let state = serde_json::to_string(agent.state()).unwrap();
    let mut restored = Agent::restore(settings(), serde_json::from_str(&state).unwrap()).unwrap();
    assert_eq!(restored.report().loss, Some(curve));
}

#[test]
fn losses_that_no_agent_would_write_are_refused() {
    let point = |start: f64, loss: f64| json!({"start": start, "baseline_steps": start, "loss": loss, "count": 1});
    let restore = |points: Vec<Value>, spacing: f64| {
        let losses = json!({"points": points, "spacing": spacing, "stale": true, "curve": null});
        restore_changed(|state| state["losses"] = losses).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(restore(vec![point(1.0, 0.5), point(2.0, 0.4)], 1.0), Ok(()));
    let refused = "2 losses 1 steps apart in a saved agent state: expected at most 32, in order of progress";
    assert_eq!(restore(vec![point(2.0, 0.5), point(1.0, 0.4)], 1.0), Err(refused.to_owned()));
    assert!(restore(vec![point(1.0, 0.5)], -1.0).is_err() && restore(vec![point(1.0, 0.5); 33], 1.0).is_err());
    let mut nothing = point(1.0, 0.5);
    nothing["count"] = json!(0);
    assert!(restore(vec![nothing], 1.0).is_err());
    assert_eq!(restore(vec![point(1.0, -0.5)], 1.0), Err("loss -0.5: expected 1e-30 to 1e30".to_owned()));
}
