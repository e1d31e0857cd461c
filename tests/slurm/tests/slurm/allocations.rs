//! Nodes that come from Slurm and go back there.

use pollux_job::Phase;
use pollux_slurm_bed::{Site, eventually};

/// Each epoch once, with each of its samples.
fn assert_whole(site: &Site, name: &str, epochs: u32) {
    let whole: Vec<(u32, u32)> = (1..=epochs).map(|epoch| (epoch, 2_048)).collect();
    assert_eq!(site.epochs(name), whole);
}

fn wait_for_end(site: &Site, job: u64) {
    let detail = eventually("the end of the training", || {
        let detail = site.client().unwrap().job(job).unwrap();
        detail.job.ended_ms.is_some().then_some(detail)
    });
    assert_eq!(detail.job.phase, Phase::Succeeded, "{detail:?}");
}

#[test]
fn a_training_grows_onto_nodes_that_slurm_gives_and_they_are_given_back_when_idle() {
    let Some(site) = Site::start(3) else { return };
    let client = site.client().unwrap();
    let job = client.submit(&site.training("grows", 12)).unwrap().id;
    site.alloc_well(
        "add slurm main --time-limit 30m --slots 1 --backlog 2 --max-nodes 3 --idle-timeout 3s --drain-before 5m -- -p debug",
    );
    eventually("growth onto two nodes", || (site.replicas(job) >= 2).then_some(()));
    let queue = site.queue("main").unwrap();
    assert!(queue.nodes <= 3 && queue.nodes_joined >= 2, "{queue:?}");
    let nodes = client.nodes().unwrap().nodes;
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    assert!(names.iter().all(|name| name.starts_with("main-")), "{names:?}");
    let described = site.alloc_well("describe main");
    assert!(described.contains("RUNNING") && described.contains(names[0]), "{described}");
    wait_for_end(&site, job);
    assert_whole(&site, "grows", 12);
    eventually("that all is given back", || site.bed.live_jobs().is_empty().then_some(()));
    eventually("no nodes", || client.nodes().unwrap().nodes.is_empty().then_some(()));
    eventually("what there is to say", || {
        let standing = site.queue("main")?.standing;
        (standing == "There is no job that may use its nodes.").then_some(())
    });
    // Who has left in good order has not failed.
    let ends: Vec<String> = site.bed.jobs().into_iter().map(|(_, state, _)| state).collect();
    assert!(ends.iter().all(|state| state == "COMPLETED" || state == "CANCELLED"), "{ends:?}");
}

#[test]
fn what_waits_is_explained_and_a_removed_queue_gives_everything_back() {
    let Some(site) = Site::start(1) else { return };
    let client = site.client().unwrap();
    let all = ["--nodes=1", "--time=50", "--output=/dev/null", "--wrap=sleep 3000"];
    assert!(site.bed.output("sbatch", &all).status.success());
    let job = client.submit(&site.training("waits", 4)).unwrap().id;
    site.alloc_well("add slurm main --time-limit 30m --slots 1 --max-nodes 1 -- -p debug");
    eventually("an explanation", || {
        let sentences = client.explanation(job).unwrap().sentences;
        sentences.iter().any(|it| it.starts_with("1 node of queue main is asked for; Slurm estimates ")).then_some(())
    });
    let paused = site.alloc_well("pause main");
    assert_eq!(paused, "note: queue main asks for nothing more until it is resumed\n");
    eventually("why nothing is asked for", || {
        (site.queue("main")?.standing == "It is paused: `pollux alloc resume main` goes on.").then_some(())
    });
    assert_eq!(site.bed.live_jobs().len(), 2);
    site.alloc_well("remove main");
    eventually("that it is cancelled", || (site.bed.live_jobs().len() == 1).then_some(()));
    eventually("that the queue is gone", || client.allocation_queues().unwrap().queues.is_empty().then_some(()));
    let output = site.alloc("describe main");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: no queue \"main\": `pollux alloc list` shows those that there are\n"
    );
}

#[test]
fn a_queue_that_slurm_would_refuse_is_refused_with_what_it_says() {
    let Some(site) = Site::start(1) else { return };
    let queue = "slurm main --time-limit 1h --slots 1 -- --partition=wrong";
    let rehearsed = site.alloc(&format!("dry-run {queue}"));
    assert_eq!(rehearsed.status.code(), Some(1));
    let text = String::from_utf8_lossy(&rehearsed.stdout).into_owned();
    assert!(text.contains("refused: sbatch: error: invalid partition specified: wrong"), "{text}");
    assert!(text.starts_with("sbatch --test-only --parsable --job-name=pollux-dry-run-main --nodes=1 "), "{text}");
    let added = site.alloc(&format!("add {queue}"));
    let text = String::from_utf8_lossy(&added.stderr).into_owned();
    assert!(
        text.starts_with("error: sbatch would refuse allocations of this queue: sbatch: error: invalid partition"),
        "{text}"
    );
    let accepted = site.alloc_well("dry-run slurm main --time-limit 1h --slots 1 -- --partition=debug");
    assert!(accepted.contains("accepted: sbatch: Job "), "{accepted}");
    let fights = site.alloc("add slurm main --time-limit 1h -- --nodes=4");
    assert_eq!(fights.status.code(), Some(2));
    let text = String::from_utf8_lossy(&fights.stderr).into_owned();
    assert_eq!(text, "error: --nodes=4 cannot be given to sbatch: say --nodes-per-alloc before `--`\n");
    assert!(site.bed.jobs().is_empty() && site.client().unwrap().allocation_queues().unwrap().queues.is_empty());
}
