use pollux_policy::{GandivaSettings, PolicySettings, ThemisSettings, TiresiasPriority, TiresiasSettings};

use crate::dice::Dice;
use crate::world::World;

/// Every policy that can run live, those that remember with settings under which it matters within minutes.
fn policies() -> Vec<PolicySettings> {
    let tiresias = |priority, promote_knob| {
        let queue_gpu_hours = vec![0.02, 0.1];
        PolicySettings::Tiresias(TiresiasSettings { queue_gpu_hours, promote_knob, priority, ..Default::default() })
    };
    let hasty = [
        tiresias(TiresiasPriority::Las, Some(1.0)),
        tiresias(TiresiasPriority::Gittins, None),
        PolicySettings::Themis(ThemisSettings { lease_s: 120.0, ..Default::default() }),
        PolicySettings::Gandiva(GandivaSettings { quantum_s: 30.0, grow_all: true, ..Default::default() }),
    ];
    let live = PolicySettings::all().into_iter().filter(|policy| !policy.needs_oracle());
    live.chain(hasty).collect()
}

/// [`World`] compares at its ticks; here every policy has its turn, and memory is shown to make a difference.
#[test]
fn every_policy_plans_after_a_restart_as_if_there_had_been_none() {
    for policy in policies() {
        let worlds = (0..25).map(|seed| World::under(Some(&policy), Dice(seed)).live_through(500));
        let needed: u32 = worlds.map(|world| world.memories_needed()).sum();
        let remembers = policy.build().save().is_some();
        assert_eq!(needed > 0, remembers, "{policy:?}: {needed} plans would have been others without its memory");
    }
}
