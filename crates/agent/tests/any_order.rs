//! An agent under arbitrary calls: nothing panics, every tuning keeps the limits, and what was seen is remembered.

use std::cell::Cell;
use std::collections::BTreeSet;

use pollux_agent::{Agent, AgentSettings, AgentState, Placement, StepObservation, Tuning};
use pollux_model::{BatchLimits, GradientNorms, Parallelism, Shape};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

#[derive(Clone, Debug)]
enum Call {
    Resize { nodes: u32, replicas: u32 },
    Step { local_batch: u32, accumulation_steps: u32, compute_s: f64, sync_s: f64 },
    Gradients(GradientNorms),
    Loss(f64),
    Rate(f64),
    Advance(u64),
    EndEpoch,
    Retune,
    SaveAndRestore(Parallelism),
}

fn calls() -> impl Strategy<Value = Call> {
    let number = prop_oneof![8 => 1e-4..10.0, 1 => prop::num::f64::ANY];
    let parallelism = prop_oneof![Just(Parallelism::DataParallel), Just(Parallelism::Sharded)];
    prop_oneof![
        1 => (1u32..6, 1u32..40).prop_map(|(nodes, replicas)| Call::Resize { nodes: nodes.min(replicas), replicas }),
        4 => (0u32..5, 0u32..3, number.clone(), number.clone()).prop_map(
            |(batches, accumulation_steps, compute_s, sync_s)| {
                Call::Step { local_batch: 30 * batches, accumulation_steps, compute_s, sync_s }
            }
        ),
        1 => number.clone().prop_map(Call::Loss),
        1 => number.clone().prop_map(Call::Rate),
        1 => (0u32..9, 0u32..9, number.clone(), number.clone(), number).prop_map(
            |(steps, micro_batches, batch_size, micro_sqr, mean_sqr)| {
                Call::Gradients(GradientNorms {
                    steps,
                    micro_batches,
                    batch_size: batch_size * 100.0,
                    micro_sqr,
                    mean_sqr,
                })
            }
        ),
        1 => prop_oneof![9 => 0u64..1_000, 1 => any::<u64>()].prop_map(Call::Advance),
        1 => Just(Call::EndEpoch),
        1 => Just(Call::Retune),
        1 => parallelism.prop_map(Call::SaveAndRestore),
    ]
}

/// What the runs had in them, so that a test that tries nothing cannot pass.
#[derive(Default)]
struct Exercised {
    steps_recorded: Cell<u32>,
    models_changed: Cell<u32>,
    cells_restored: Cell<u32>,
}

struct World<'a> {
    agent: Agent,
    settings: AgentSettings,
    placement: Placement,
    /// Nodes, replicas and local batch of every step that was accepted.
    configurations: BTreeSet<(u32, u32, u32)>,
    exercised: &'a Exercised,
}

impl World<'_> {
    fn call(&mut self, call: &Call) -> Result<(), TestCaseError> {
        let agent = &mut self.agent;
        let tuning: Option<Tuning> = match *call {
            Call::Resize { nodes, replicas } => {
                let wanted = Placement::from(Shape::new(nodes, replicas).expect("no more nodes than replicas"));
                let tuning = agent.resize(wanted.clone()).ok();
                self.placement = if tuning.is_some() { wanted } else { self.placement.clone() };
                tuning
            }
            Call::Step { local_batch, accumulation_steps, compute_s, sync_s } => {
                let placement = self.placement.clone();
                let step = StepObservation {
                    placement: placement.clone(),
                    local_batch,
                    accumulation_steps,
                    compute_s,
                    sync_s,
                };
                let before = agent.state().clone();
                if agent.observe_step(&step).is_ok() {
                    let shape = placement.shape;
                    self.configurations.insert((shape.nodes(), shape.replicas(), local_batch));
                    count(&self.exercised.steps_recorded, 1);
                } else {
                    prop_assert_eq!(agent.state(), &before);
                }
                None
            }
            Call::Gradients(norms) => {
                agent.observe_gradients(&norms);
                None
            }
            Call::Loss(loss) => {
                let before = agent.state().clone();
                if agent.observe_loss(loss).is_err() {
                    prop_assert_eq!(agent.state(), &before);
                }
                None
            }
            Call::Rate(samples_per_s) => {
                prop_assert_eq!(
                    agent.observe_rate(samples_per_s).is_ok(),
                    samples_per_s > 0.0 && samples_per_s.is_finite()
                );
                None
            }
            Call::Advance(steps) => {
                agent.advance(steps);
                None
            }
            Call::EndEpoch => agent.end_epoch().expect("the placement was feasible"),
            Call::Retune => agent.retune().expect("the placement was feasible"),
            Call::SaveAndRestore(parallelism) => {
                self.save_and_restore(parallelism)?;
                None
            }
        };
        if let Some(Tuning { local_batch, accumulation_steps }) = tuning {
            prop_assert!(self.settings.limits.allow(self.placement.shape, local_batch, accumulation_steps));
        }
        self.check_report()
    }

    fn save_and_restore(&mut self, parallelism: Parallelism) -> Result<(), TestCaseError> {
        let text = serde_json::to_string(self.agent.state()).expect("plain data");
        let state: AgentState = serde_json::from_str(&text).expect("as written");
        prop_assert_eq!(&state, self.agent.state());
        let json: serde_json::Value = serde_json::from_str(&text).expect("as written");
        let cells = json["profiles"].get(0).map_or(0, |profile| profile["cells"].as_array().expect("a list").len());
        prop_assert_eq!(cells, self.configurations.len());
        count(&self.exercised.cells_restored, u32::try_from(cells).expect("a few"));
        self.settings.parallelism = parallelism;
        self.agent = Agent::restore(self.settings.clone(), state).expect("as written");
        Ok(())
    }

    fn check_report(&mut self) -> Result<(), TestCaseError> {
        let before = self.agent.state().clone();
        let report = self.agent.report();
        prop_assert_eq!(report.types.len(), usize::from(!self.configurations.is_empty()));
        prop_assert_eq!(self.agent.fit_errors().count(), 0);
        for learned in &report.types {
            prop_assert_eq!(learned.model.parallelism(), self.settings.parallelism);
            prop_assert!(self.configurations.iter().all(|&(_, replicas, _)| replicas <= learned.replicas_profiled));
        }
        count(&self.exercised.models_changed, u32::from(*self.agent.state() != before));
        Ok(())
    }
}

fn count(counter: &Cell<u32>, more: u32) {
    counter.set(counter.get() + more);
}

#[test]
fn nothing_panics_limits_hold_and_what_was_seen_is_remembered() {
    let exercised = Exercised::default();
    let config = ProptestConfig { cases: 500, source_file: Some(file!()), ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&prop::collection::vec(calls(), 1..60), |calls| {
            let limits = BatchLimits::new(100, 3000, 7, 120).expect("ordered");
            let settings = AgentSettings { settling_steps: 0, ..AgentSettings::new(limits) };
            let mut world = World {
                agent: Agent::new(settings.clone()),
                settings,
                placement: Placement::from(Shape::single()),
                configurations: BTreeSet::new(),
                exercised: &exercised,
            };
            calls.iter().try_for_each(|call| world.call(call))
        })
        .unwrap();
    for counter in [&exercised.steps_recorded, &exercised.models_changed, &exercised.cells_restored] {
        assert!(counter.get() > 500, "{} in 500 runs: the calls do not reach what they should", counter.get());
    }
}
