use std::collections::BTreeSet;

use pollux_testbed::wait_for;

use crate::training::{Training, conclude, training};
use crate::world::{LIMIT, World, world};

/// The authority that signs, and all others that are trusted.
fn authorities(world: &World) -> (String, BTreeSet<String>) {
    let secret = world.cluster.get(&["get", "secret", "pollux-authority", "--namespace=pollux"]).unwrap();
    let kept = |name: &str| secret["data"][name].as_str().map(str::to_owned);
    (kept("ca.crt").unwrap(), ["next.crt", "last.crt"].into_iter().filter_map(kept).collect())
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn the_authority_is_replaced_while_workers_stay_connected() {
    let Some(world) = world() else { return };
    let job = Training::start(&world, "steady", 12);
    let (before, (old, _)) = (job.containers(), authorities(&world));
    world.upgrade("renewAuthorityAfter=20s");
    wait_for("another authority vouches for the operator, alone", LIMIT, || {
        let (current, others) = authorities(&world);
        Ok((current != old && !others.contains(&old)).then_some(()))
    })
    .unwrap();
    // Who was there with the old one still hears that it is resized, in place.
    let other = Training::submit(&world, &training(&world, "newcomer"));
    job.wait("it has shrunk", |status| status["phase"] == "Running" && status["gpus"].as_u64() < Some(12));
    job.trains_on();
    let kept: BTreeSet<String> = job.containers().intersection(&before).cloned().collect();
    assert_eq!(kept, job.containers(), "it has shrunk in place");
    assert!(!kept.is_empty());
    for replica in world.replicas().unwrap() {
        let log = world.cluster.kubectl(&["logs", &replica.pod, "--namespace=pollux"]).unwrap();
        assert!(!log.contains("connection refused: no TLS"), "{log}");
    }
    world.upgrade("renewAuthorityAfter=90d");
    conclude(&world, [job, other]);
}
