use pollux_model::{GpuType, NoiseStatistics};
use pollux_policy::{
    Advice, Autoscaler, AutoscalerSettings, CastorSettings, Flexibility, NodePool, PolicySettings, PolluxSettings,
};
use proptest::prelude::*;

use crate::random::{policies, worlds};
use crate::world::{Job, World};

const BAND: AutoscalerSettings =
    AutoscalerSettings { utility_low: 0.5, utility_high: 0.7, nodes_min: 1, nodes_max: 16 };

fn elastic() -> [PolicySettings; 2] {
    [PolicySettings::Pollux(PolluxSettings::default()), PolicySettings::Castor(CastorSettings::default())]
}

/// A job that is worth nearly every GPU: it synchronises in no time, and its gradients are so noisy that samples of a
/// large batch count as much as those of a small one.
fn scalable(profiled: u32) -> Job {
    let mut job = Job::measured(profiled, 1e-4);
    job.profiles[0].goodput.noise = NoiseStatistics::new(1.0, 1e6).expect("positive");
    job
}

/// Advice for a world whose nodes of four GPUs are all there is.
fn advise(settings: AutoscalerSettings, policy: &PolicySettings, world: &World) -> Advice {
    let pool =
        NodePool { nodes: world.nodes.len() as u32, gpus: 4, gpu_type: GpuType::default(), cpus: None, memory: None };
    let mut autoscaler = Autoscaler::new(settings, policy).expect("settings that make sense");
    world.with_view(|now, view| autoscaler.advise(now, view, pool))
}

#[test]
fn an_idle_cluster_shrinks_to_its_fewest_nodes() {
    for policy in elastic() {
        let settings = AutoscalerSettings { nodes_min: 2, ..BAND };
        let advice = advise(settings, &policy, &World::new(9, 4, vec![]));
        assert_eq!(advice, Advice { nodes: 2, utility: 0.0, utility_now: 0.0 });
    }
}

#[test]
fn jobs_that_scale_well_get_all_the_nodes_there_may_be() {
    for policy in elastic() {
        let advice = advise(BAND, &policy, &World::new(1, 4, vec![scalable(64)]));
        assert_eq!(advice.nodes, 16, "{advice:?}");
        assert!(advice.utility > 0.7 && advice.utility_now > 0.7, "{advice:?}");
    }
}

#[test]
fn a_job_that_scales_badly_is_worth_few_nodes() {
    for policy in elastic() {
        let sync_s = [1e-4, 0.03, 0.1, 0.3, 3.0];
        let nodes =
            sync_s.map(|sync_s| advise(BAND, &policy, &World::new(8, 4, vec![Job::measured(64, sync_s)])).nodes);
        assert!(nodes.is_sorted_by(|a, b| a >= b), "{nodes:?}");
        assert!(nodes[0] > 4 && nodes[4] == 1, "{nodes:?}");
    }
}

#[test]
fn the_utility_is_brought_into_the_band_and_then_left_alone() {
    for policy in elastic() {
        for jobs in 1..8 {
            let world = |nodes| World::new(nodes, 4, (0..jobs).map(|_| Job::measured(64, 0.05)).collect());
            for nodes in [1, 16] {
                let advice = advise(BAND, &policy, &world(nodes));
                let capped = advice.nodes == BAND.nodes_max && advice.utility > BAND.utility_high;
                assert!(capped || (0.5..=0.7).contains(&advice.utility), "{jobs} jobs on {nodes}: {advice:?}");
                let settled = advise(BAND, &policy, &world(advice.nodes));
                assert_eq!(settled.nodes, advice.nodes, "{jobs} jobs: {advice:?}, then {settled:?}");
                assert_eq!(settled.utility_now, advice.utility);
            }
        }
    }
}

#[test]
fn more_jobs_never_want_fewer_nodes() {
    for policy in elastic() {
        let wanted = |jobs: usize| advise(BAND, &policy, &World::new(1, 4, vec![Job::measured(64, 0.2); jobs])).nodes;
        let nodes: Vec<u32> = (0..20).map(wanted).collect();
        assert!(nodes.is_sorted() && nodes[0] == 1 && nodes[19] > 4, "{nodes:?}");
    }
}

#[test]
fn nodes_that_nobody_could_use_yet_are_not_wanted() {
    let [pollux, _] = elastic();
    let measured = |replicas| World::new(1, 4, vec![scalable(replicas)]);
    assert_eq!(advise(BAND, &pollux, &measured(4)).nodes, 2, "eight GPUs are twice what it was measured on");
    assert_eq!(advise(BAND, &pollux, &measured(8)).nodes, 4);
}

#[test]
fn a_gang_gets_nodes_to_start_on() {
    let gang = Job { requested: 12, flexibility: Flexibility::Rigid, ..Job::measured(16, 3.0) };
    let asked = Job { requested: 12, ..Job::measured(16, 3.0) };
    for policy in elastic() {
        assert_eq!(advise(BAND, &policy, &World::new(1, 4, vec![gang.clone()])).nodes, 3);
        assert_eq!(advise(BAND, &policy, &World::new(1, 4, vec![asked.clone()])).nodes, 1, "it can run on less");
    }
    assert_eq!(
        advise(BAND, &PolicySettings::Fifo, &World::new(1, 4, vec![asked])).nodes,
        3,
        "fifo gives what is asked"
    );
}

#[test]
fn nodes_are_not_bought_for_a_job_that_would_not_move() {
    let [pollux, _] = elastic();
    let wanted = |restarts| {
        let job = Job { restarts, ..scalable(64) }.running(&[(0, 4)]);
        advise(BAND, &pollux, &World::new(1, 4, vec![job])).nodes
    };
    assert_eq!((wanted(0), wanted(1_000)), (16, 1), "restarts cost the second more than its age");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn advice_for_any_world_is_within_bounds_and_not_random(
        world in worlds(),
        (nodes, gpus, kind) in (0u32..20, 0u32..9, 0u16..3),
        (nodes_min, more) in (1u32..6, 0u32..12),
        (low, high) in (0.0f64..0.5, 0.5f64..1.0),
    ) {
        let nodes_max = nodes_min + more;
        let settings = AutoscalerSettings { utility_low: low, utility_high: high, nodes_min, nodes_max };
        let pool = NodePool { nodes, gpus, gpu_type: GpuType(kind), cpus: None, memory: None };
        for policy in policies() {
            let advise = || {
                let mut autoscaler = Autoscaler::new(settings, &policy).expect("settings that make sense");
                world.with_view(|now, view| autoscaler.advise(now, view, pool))
            };
            let advice = advise();
            prop_assert!((nodes_min..=nodes_max).contains(&advice.nodes), "{:?}", advice);
            prop_assert!(advice.utility.is_finite() && advice.utility >= 0.0, "{:?}", advice);
            prop_assert_eq!(advice, advise());
        }
    }
}
