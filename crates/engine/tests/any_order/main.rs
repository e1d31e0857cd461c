//! Whatever happens, in whatever order: the engine does not panic, its state never contradicts itself or the
//! processes that a backend really runs, and once faults cease every job runs or waits for a reason.

mod backend;
mod dice;
mod random_policy;
mod restarts;
mod world;

use proptest::prelude::*;

use world::World;

proptest! {
    // Most sequences are short: many different beginnings find more than few long histories.
    #![proptest_config(ProptestConfig { cases: 100_000, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_events_is_survived_and_healed(seed in any::<u64>(), events in 1u32..40) {
        World::new(seed).live_through(events).heal();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn long_histories_are_survived_and_healed(seed in any::<u64>(), events in 400u32..800) {
        World::new(seed).live_through(events).heal();
    }

    #[test]
    fn a_driver_that_lies_breaks_no_invariant(seed in any::<u64>(), events in 1u32..600) {
        World::lied_to(seed).live_through(events);
    }
}
