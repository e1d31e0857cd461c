//! An agent under arbitrary calls: nothing panics and every tuning keeps the limits.

use pollux_agent::{Agent, AgentSettings, AgentState, Placement, StepObservation, Tuning};
use pollux_model::{BatchLimits, GradientNorms, Shape};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Call {
    Resize { nodes: u32, replicas: u32 },
    Step { local_batch: u32, accumulation_steps: u32, compute_s: f64, sync_s: f64 },
    Gradients(GradientNorms),
    Advance(u64),
    EndEpoch,
    Retune,
    SaveAndRestore,
}

fn calls() -> impl Strategy<Value = Call> {
    let number = prop_oneof![8 => 1e-4..10.0, 1 => prop::num::f64::ANY];
    prop_oneof![
        (1u32..6, 1u32..40).prop_map(|(nodes, replicas)| Call::Resize { nodes: nodes.min(replicas), replicas }),
        (0u32..300, 0u32..6, number.clone(), number.clone()).prop_map(
            |(local_batch, accumulation_steps, compute_s, sync_s)| {
                Call::Step { local_batch, accumulation_steps, compute_s, sync_s }
            }
        ),
        (0u32..9, 0u32..9, number.clone(), number.clone(), number).prop_map(
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
        (0u64..1_000).prop_map(Call::Advance),
        Just(Call::EndEpoch),
        Just(Call::Retune),
        Just(Call::SaveAndRestore),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics_and_limits_hold(calls in prop::collection::vec(calls(), 1..60)) {
        let limits = BatchLimits::new(100, 3000, 7, 120).expect("ordered");
        let settings = AgentSettings::new(limits);
        let mut agent = Agent::new(settings.clone());
        let mut placement = Placement::from(Shape::single());
        for call in calls {
            let tuning: Option<Tuning> = match call {
                Call::Resize { nodes, replicas } => {
                    let wanted = Placement::from(Shape::new(nodes, replicas).expect("no more nodes than replicas"));
                    let tuning = agent.resize(wanted).ok();
                    placement = if tuning.is_some() { wanted } else { placement };
                    tuning
                }
                Call::Step { local_batch, accumulation_steps, compute_s, sync_s } => {
                    let step = StepObservation { placement, local_batch, accumulation_steps, compute_s, sync_s };
                    let before = agent.state().clone();
                    if agent.observe_step(&step).is_err() {
                        prop_assert_eq!(agent.state(), &before);
                    }
                    None
                }
                Call::Gradients(norms) => {
                    agent.observe_gradients(&norms);
                    None
                }
                Call::Advance(steps) => {
                    agent.advance(steps);
                    None
                }
                Call::EndEpoch => agent.end_epoch().expect("the placement was feasible"),
                Call::Retune => agent.retune().expect("the placement was feasible"),
                Call::SaveAndRestore => {
                    let text = serde_json::to_string(agent.state()).expect("plain data");
                    let state: AgentState = serde_json::from_str(&text).expect("as written");
                    prop_assert_eq!(&state, agent.state());
                    agent = Agent::restore(settings.clone(), state).expect("as written");
                    None
                }
            };
            if let Some(tuning) = tuning {
                prop_assert!(limits.allow(placement.shape, tuning.local_batch, tuning.accumulation_steps));
            }
            prop_assert!(agent.report().is_ok());
        }
    }
}
