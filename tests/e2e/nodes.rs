//! Trainings on machines that do not share a disk.

use std::fs;
use std::io::Read;

use pollux_client::{EventQuery, LogQuery, NodeAction};
use pollux_job::{JobSpec, Phase};
use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::{Site, eventually};
use crate::machines::Machines;

const EPOCHS: u32 = 40;
const SAMPLES: u32 = 1_024;

/// A job on one machine at a time that saves again and again.
fn training(site: &Site) -> JobSpec {
    let (epochs, samples) = (EPOCHS.to_string(), SAMPLES.to_string());
    let options = ["--epochs", &epochs, "--samples", &samples, "--pace", "good", "--checkpoint-every", "1"];
    JobSpec { replicas_max: Some(1), ..site.training("moves", &options) }
}

fn holds_job<'a>(machines: &Machines<'_>, names: [&'a str; 2]) -> Option<(&'a str, &'a str)> {
    let [one, other] = names;
    match (machines.workers(one).len(), machines.workers(other).len()) {
        (1.., 0) => Some((one, other)),
        (0, 1..) => Some((other, one)),
        _ => None,
    }
}

/// The epoch in which its last replica took it up, as that has printed.
fn resumed_in(site: &Site, job: u64) -> u32 {
    let mut text = String::new();
    let mut logs = site.client().unwrap().logs(job, LogQuery::default()).unwrap();
    logs.read_to_string(&mut text).unwrap();
    let said = text.split_once("carrying on in epoch ").unwrap_or_else(|| panic!("it began anew: {text}")).1;
    said.split(' ').next().unwrap().parse().unwrap()
}

fn history(site: &Site, job: u64) -> Vec<String> {
    let query = EventQuery { after: 0, job: Some(job), limit: Some(1_000) };
    site.client().unwrap().events(query).unwrap().events.into_iter().map(|event| event.text).collect()
}

fn each_once() -> Vec<(u32, u32)> {
    (1..=EPOCHS).map(|epoch| (epoch, SAMPLES)).collect()
}

fn wait_for_success(site: &Site, job: u64) {
    let ended = eventually("the end of the training", || {
        let job = site.client().unwrap().job(job).unwrap().job;
        job.ended_ms.is_some().then_some(job)
    });
    assert_eq!(ended.phase, Phase::Succeeded, "{:#?}", history(site, job));
    assert_eq!(site.epochs("moves"), each_once());
}

#[test]
fn a_training_goes_on_at_another_machine_from_what_it_saved_at_the_first() {
    let site = Site::new(&["--slots", "0", "--round-interval", "1"]);
    let _daemon = site.start();
    let mut machines = Machines::new(&site);
    ["gpu1", "gpu2"].iter().for_each(|name| machines.join(name));
    let job = site.client().unwrap().submit(&training(&site)).unwrap().id;
    eventually("some epochs", || (site.epochs("moves").len() >= 3).then_some(()));
    let (from, to) = eventually("its machine", || holds_job(&machines, ["gpu1", "gpu2"]));
    let before = u32::try_from(site.epochs("moves").len()).unwrap();
    site.client().unwrap().act_on_node(from, NodeAction::Drain).unwrap();
    eventually("its other machine", || (!machines.workers(to).is_empty()).then_some(()));
    wait_for_success(&site, job);
    // What it saved when it was told to leave is what it goes on from, not what was copied some seconds before.
    let resumed = resumed_in(&site, job);
    assert!(resumed > before, "{before} epochs were finished, and it went on in epoch {resumed}");
    assert!(machines.saved(to).exists());
}

#[test]
fn a_training_whose_machine_is_gone_goes_on_from_the_copy_of_what_it_saved() {
    let site = Site::new(&["--slots", "0", "--round-interval", "1"]);
    let _daemon = site.start();
    let mut machines = Machines::new(&site);
    ["gpu1", "gpu2"].iter().for_each(|name| machines.join(name));
    let job = site.client().unwrap().submit(&training(&site)).unwrap().id;
    let copy = site.state().join("checkpoints").join(job.to_string()).join("checkpoint");
    eventually("a copy", || copy.is_file().then_some(()));
    let (from, to) = eventually("its machine", || holds_job(&machines, ["gpu1", "gpu2"]));
    // Power failure, and a disk that nobody sees again.
    machines.kill(from);
    for worker in machines.workers(from) {
        let _ = kill_process(Pid::from_raw(worker.pid).unwrap(), Signal::KILL);
    }
    eventually("its end", || machines.workers(from).is_empty().then_some(()));
    fs::remove_dir_all(machines.saved(from)).unwrap();
    eventually("the loss is seen", || machines.node(from).filter(|node| node.is_unreachable).map(drop));
    site.client().unwrap().remove_machine(from).unwrap();
    eventually("its other machine", || (!machines.workers(to).is_empty()).then_some(()));
    wait_for_success(&site, job);
    assert!(resumed_in(&site, job) >= 1);
}
