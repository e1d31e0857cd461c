//! What goes wrong: the daemon and the controller are killed, allocations are taken away, Slurm refuses.

use std::collections::BTreeSet;
use std::time::Duration;

use pollux_job::Phase;

use crate::bed::eventually;
use crate::site::Site;

#[test]
fn a_daemon_that_is_killed_again_and_again_asks_for_nothing_twice_and_leaves_nothing_behind() {
    let Some(mut site) = Site::start(4) else { return };
    let job = site.client().unwrap().submit(&site.training("survives", 16)).unwrap().id;
    // Two wait for ever, because there are four nodes only and each allocation takes two.
    site.alloc_well("add slurm pairs --time-limit 30m --nodes-per-alloc 2 --slots 1 --backlog 2 --max-nodes 8 --idle-timeout 2s --drain-before 5m -- -p debug");
    for round in 0_u64..12 {
        site.kill_daemon();
        site.spawn_daemon();
        // Each time a little further: in the middle of its start, of `sbatch`, of a look.
        std::thread::sleep(Duration::from_millis(150 + 170 * round));
        assert!(site.bed.live_jobs().len() <= 4, "{:?}", site.bed.jobs());
    }
    site.kill_daemon();
    site.start_daemon();
    let detail = eventually("the end of the training", || {
        let detail = site.client().unwrap().job(job).unwrap();
        detail.job.ended_ms.is_some().then_some(detail)
    });
    assert_eq!(detail.job.phase, Phase::Succeeded);
    assert!(site.epochs("survives").iter().all(|(_, samples)| *samples == 2_048), "{:?}", site.epochs("survives"));
    site.alloc_well("remove pairs");
    eventually("that all is given back", || site.bed.live_jobs().is_empty().then_some(()));
    let jobs = site.bed.jobs();
    let names: BTreeSet<&str> = jobs.iter().map(|(_, _, name)| name.as_str()).collect();
    assert_eq!(names.len(), jobs.len(), "each was asked for once: {jobs:?}");
}

#[test]
fn an_allocation_that_is_taken_away_and_a_controller_that_is_killed_cost_no_sample() {
    let Some(mut site) = Site::start(3) else { return };
    let client = site.client().unwrap();
    let job = client.submit(&site.training("robbed", 20)).unwrap().id;
    site.alloc_well(
        "add slurm main --time-limit 30m --slots 1 --backlog 2 --max-nodes 2 --drain-before 5m -- -p debug",
    );
    eventually("growth onto two nodes", || (site.replicas(job) >= 2).then_some(()));
    let taken = *site.bed.live_jobs().first().unwrap();
    assert!(site.bed.output("scancel", &["--signal=KILL", "--full", &taken.to_string()]).status.success());
    assert!(site.bed.output("scancel", &[&taken.to_string()]).status.success());
    eventually("that its machine is gone", || {
        let nodes = client.nodes().unwrap().nodes;
        (!nodes.iter().any(|node| node.name.starts_with(&format!("main-{taken}-")))).then_some(())
    });
    site.bed.kill_controller();
    eventually("a word of it", || site.queue("main")?.standing.starts_with("Slurm does not answer").then_some(()));
    site.bed.start_controller();
    eventually("that it is over", || {
        let standing = site.queue("main")?.standing;
        (!standing.starts_with("Slurm does not answer")).then_some(())
    });
    let detail = eventually("the end of the training", || {
        let detail = client.job(job).unwrap();
        detail.job.ended_ms.is_some().then_some(detail)
    });
    assert_eq!(detail.job.phase, Phase::Succeeded);
    let epochs = site.epochs("robbed");
    assert!(epochs.iter().all(|(_, samples)| *samples == 2_048), "{epochs:?}");
    assert_eq!(epochs.iter().map(|(epoch, _)| *epoch).collect::<BTreeSet<_>>().len(), 20, "{epochs:?}");
}

#[test]
fn a_queue_that_slurm_refuses_again_and_again_is_stopped_with_what_it_said() {
    let Some(site) = Site::start(1) else { return };
    let client = site.client().unwrap();
    site.alloc_well("add slurm main --time-limit 30m --slots 1 -- -p debug");
    assert!(site.bed.output("scontrol", &["update", "PartitionName=debug", "State=INACTIVE"]).status.success());
    client.submit(&site.training("waits", 4)).unwrap();
    let queue = eventually("that it is stopped", || site.queue("main").filter(|queue| queue.state == "stopped"));
    let said = "sbatch has failed 3 times in a row, the last time with: sbatch: error: Batch job submission failed:";
    assert!(queue.log.iter().any(|event| event.text.contains(said)), "{:?}", queue.log);
    assert!(site.bed.jobs().is_empty());
    assert!(site.bed.output("scontrol", &["update", "PartitionName=debug", "State=UP"]).status.success());
    site.alloc_well("resume main");
    eventually("an allocation", || (!site.bed.live_jobs().is_empty()).then_some(()));
    let log = site.alloc_well("log main");
    assert!(log.contains("It was resumed.") && log.contains(" was asked for."), "{log}");
}
