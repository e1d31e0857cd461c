use std::collections::BTreeSet;

use crate::training::{Training, conclude, training};
use crate::world::world;

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_training_grows_over_nodes_outlives_its_operator_and_shrinks_in_place() {
    let Some(world) = world() else { return };
    let mut job = training(&world, "first");
    job["spec"]["replicasMax"] = 12.into();
    let first = Training::submit(&world, &job);
    first.wait("it is on all GPUs of all nodes", |status| {
        status["gpus"] == 12 && status["nodeCount"] == 3 && status["phase"] == "Running"
    });
    let (before, epoch) = (first.containers(), world.epoch());
    assert_eq!(before.len(), 12);

    // The leader with its disk; the other one takes over.
    let leader = world.leader();
    let killed = ["delete", "pod", &leader.pod, "--namespace=pollux", "--force", "--grace-period=0"];
    world.cluster.kubectl(&killed).unwrap();
    world.await_epoch_above(epoch);
    assert_eq!(first.containers(), before, "whoever trained trains on, and nobody else does");

    let second = Training::submit(&world, &training(&world, "second"));
    second.wait("it trains", |status| status["phase"] == "Running");
    let kept: BTreeSet<String> = first.containers().intersection(&before).cloned().collect();
    assert!(!kept.is_empty() && kept.len() < 12, "it has shrunk in place: {kept:?} of {before:?}");
    conclude(&world, [first, second]);
}
