//! What goes wrong: the daemon and the controller are killed, allocations are taken away, Slurm refuses.

use std::collections::BTreeSet;
use std::time::Duration;

use pollux_client::EventQuery;
use pollux_job::{Flexibility, JobSpec, Phase};
use pollux_slurm_bed::{Site, eventually};

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

/// The end of a training that has lost replicas: every epoch is whole, and none is missing.
fn assert_recovered(site: &Site, job: u64, name: &str, epochs: u32) {
    let detail = eventually("the end of the training", || {
        let detail = site.client().unwrap().job(job).unwrap();
        detail.job.ended_ms.is_some().then_some(detail)
    });
    assert_eq!(detail.job.phase, Phase::Succeeded, "{detail:?}");
    let trained = site.epochs(name);
    assert!(trained.iter().all(|(_, samples)| *samples == 2_048), "{trained:?}");
    let seen: BTreeSet<u32> = trained.iter().map(|(epoch, _)| *epoch).collect();
    assert!(seen.into_iter().eq(1..=epochs), "{trained:?}");
}

fn machines_of(site: &Site, job: u64) -> Vec<String> {
    let nodes = site.client().unwrap().nodes().unwrap().nodes;
    let prefix = format!("main-{job}-");
    nodes.into_iter().map(|node| node.name).filter(|name| name.starts_with(&prefix)).collect()
}

#[test]
fn an_allocation_that_slurm_starts_again_and_one_whose_node_is_down_cost_no_sample() {
    let Some(site) = Site::start(3) else { return };
    let job = site.client().unwrap().submit(&site.training("displaced", 40)).unwrap().id;
    site.alloc_well(
        "add slurm main --time-limit 30m --slots 1 --backlog 2 --max-nodes 2 --drain-before 5m -- -p debug",
    );
    eventually("growth onto two nodes", || (site.replicas(job) >= 2).then_some(()));
    let [first, second] = site.bed.live_jobs()[..] else { panic!("{:?}", site.bed.jobs()) };
    // Administrators may take back what users said of it.
    for order in [&["update", &format!("JobId={first}"), "Requeue=1"][..], &["requeue", &first.to_string()]] {
        let output = site.bed.output("scontrol", order);
        assert!(output.status.success(), "{output:?}");
    }
    eventually("that its machine is gone", || machines_of(&site, first).is_empty().then_some(()));
    let log = site.alloc_well("log main");
    assert!(log.contains(&format!("Slurm job {first} waits again: Slurm has taken its nodes.")), "{log}");
    eventually("that it may start at once", || {
        let now = ["update", &format!("JobId={first}"), "StartTime=now"];
        site.bed.output("scontrol", &now).status.success().then_some(())
    });
    // With it or, where the folder of its agent was left behind on the node, with another that is asked for in its place.
    eventually("growth onto two nodes again", || (site.replicas(job) >= 2).then_some(()));
    let host = site.bed.printed("squeue", &["-h", "-j", &second.to_string(), "-o", "%N"]);
    let down = ["update", &format!("NodeName={}", host.trim()), "State=DOWN", "Reason=test"];
    assert!(site.bed.output("scontrol", &down).status.success());
    eventually("that the machine of the other is gone", || machines_of(&site, second).is_empty().then_some(()));
    assert_recovered(&site, job, "displaced", 40);
    let states: Vec<String> = site.bed.jobs().into_iter().map(|(_, state, _)| state).collect();
    assert!(states.iter().any(|state| state == "NODE_FAIL"), "{states:?}");
}

#[test]
fn sixteen_allocations_of_a_node_each_are_asked_for_once_used_and_given_back() {
    let Some(site) = Site::start(16) else { return };
    let client = site.client().unwrap();
    let sleeps = |idx: u32| JobSpec {
        command: vec!["sleep".to_owned(), "600".to_owned()],
        working_dir: site.bed.folder().to_owned(),
        flexibility: Flexibility::Rigid,
        ..JobSpec::new(&format!("sleeps-{idx}"), 1)
    };
    let jobs: Vec<u64> = (0..16).map(|idx| client.submit(&sleeps(idx)).unwrap().id).collect();
    site.alloc_well(
        "add slurm main --time-limit 30m --slots 1 --backlog 16 --max-nodes 16 --drain-before 5m -- -p debug",
    );
    eventually("that all run", || {
        let runs = |job: &u64| client.job(*job).is_ok_and(|detail| detail.job.phase == Phase::Running);
        jobs.iter().all(runs).then_some(())
    });
    let queue = site.queue("main").unwrap();
    assert_eq!((queue.nodes, queue.nodes_joined), (16, 16), "{queue:?}");
    site.alloc_well("remove main");
    eventually("that all is given back", || site.bed.live_jobs().is_empty().then_some(()));
    eventually("that the queue is gone", || client.allocation_queues().unwrap().queues.is_empty().then_some(()));
    assert_eq!(site.bed.jobs().len(), 16, "each was asked for once: {:?}", site.bed.jobs());
}

#[test]
fn before_the_time_limit_a_training_leaves_in_place_and_trains_on_elsewhere() {
    let Some(site) = Site::start(3) else { return };
    let client = site.client().unwrap();
    let job = client.submit(&site.training("shrinks", 110)).unwrap().id;
    site.alloc_well("add slurm ends --time-limit 2m --slots 1 --max-nodes 1 --drain-before 1m -- -p debug");
    eventually("a first replica", || (site.replicas(job) >= 1).then_some(()));
    // It begins where a node ends soon, and has others that stay when it has to leave.
    site.alloc_well(
        "add slurm stays --time-limit 30m --slots 1 --gpu-type cpu --max-nodes 2 --drain-before 5m -- -p debug",
    );
    eventually("growth onto a node that stays", || (site.replicas(job) >= 2).then_some(()));
    let over = |state: &str| matches!(state, "COMPLETED" | "TIMEOUT" | "CANCELLED" | "FAILED");
    let ended = eventually("the end of that node", || {
        site.bed.jobs().into_iter().find(|(_, state, name)| name.contains("-ends-") && over(state))
    });
    assert_eq!(ended.1, "COMPLETED", "it was left and given back before its time limit: {:?}", site.bed.jobs());
    assert!(site.replicas(job) >= 1, "it trains on");
    let detail = eventually("the end of the training", || {
        let detail = client.job(job).unwrap();
        detail.job.ended_ms.is_some().then_some(detail)
    });
    assert_eq!(detail.job.phase, Phase::Succeeded, "{detail:?}");
    let whole: Vec<(u32, u32)> = (1..=110).map(|epoch| (epoch, 2_048)).collect();
    assert_eq!(site.epochs("shrinks"), whole, "every epoch once, with each of its samples");
    let query = EventQuery { after: 0, job: Some(job), limit: Some(1_000) };
    let told: Vec<String> = client.events(query).unwrap().events.into_iter().map(|event| event.text).collect();
    let stops = told.iter().filter(|text| text.starts_with("stopping "));
    let in_place = |text: &&String| text.ends_with(": the job shrinks") || text.ends_with(": the job finished");
    assert!(stops.clone().all(|text| in_place(&text)), "it never stopped as a whole: {told:#?}");
    let pauses = told.iter().filter_map(|text| text.strip_prefix("trains on, after a pause of "));
    println!("pauses: {:?}", pauses.collect::<Vec<_>>());
}
