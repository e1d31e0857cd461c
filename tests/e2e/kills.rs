use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pollux_client::{EventQuery, JobAction};
use pollux_job::Phase;

use crate::daemon::{Daemon, Site, eventually};
use crate::machines::Machines;
use crate::processes::{WorkerProcess, workers};

const KILLS: u32 = 100;
const KILLS_OF_MACHINES: u32 = 36;
const EPOCHS: u32 = 3;
const SAMPLES: u32 = 1024;
/// How long an epoch that ends without a daemon is waited for.
const ALONE_MAX: Duration = Duration::from_secs(10);

/// A few lines are enough to spread moments evenly.
struct Random(u64);

impl Random {
    fn up_to(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What users have done.
#[derive(Default)]
struct Used {
    /// Jobs that were acknowledged, by name.
    acknowledged: BTreeMap<String, u64>,
    /// Jobs that somebody wanted to cancel.
    cancelled: BTreeSet<u64>,
}

/// What users do, whether there is a daemon or not, until they are told to stop.
fn use_it(site: &Site, stop: &AtomicBool) -> Used {
    let Used { mut acknowledged, mut cancelled } = Used::default();
    let mut random = Random(7);
    let (epochs, samples) = (EPOCHS.to_string(), SAMPLES.to_string());
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50 + random.up_to(200)));
        let Ok(client) = site.client() else { continue };
        let Ok(status) = client.cluster() else { continue };
        let live: Vec<u64> = acknowledged.values().copied().collect();
        if status.jobs.values().sum::<u64>() < 5 {
            let name = format!("job-{number}");
            let options =
                ["--epochs", &epochs, "--samples", &samples, "--pace", "good", "--checkpoint-every", "5", "-q"];
            if let Ok(job) = client.submit(&site.training(&name, &options)) {
                acknowledged.insert(name, job.id);
            }
        } else if let Some(&newest) = live.iter().max().filter(|_| random.up_to(30) == 0) {
            // It may have ended, or nobody may be there to hear it.
            let _ = client.act(newest, JobAction::Cancel);
            cancelled.insert(newest);
        } else if let Some(&job) = live.get(random.up_to(live.len().max(1) as u64) as usize) {
            // It may have ended, or nobody may be there to hear it.
            let _ = client.act(job, JobAction::Pause);
            std::thread::sleep(Duration::from_millis(random.up_to(300)));
            let _ = client.act(job, JobAction::Resume);
        }
    }
    Used { acknowledged, cancelled }
}

/// Looks at the processes until told to stop; returns what must never be seen.
fn watch(site: &Site, stop: &AtomicBool) -> Vec<String> {
    let mut faults = Vec::new();
    let mut before = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let now = workers(site.folder());
        // Who was seen twice ran in between, together with all the others that were.
        let running: Vec<&WorkerProcess> = now.iter().filter(|worker| before.contains(*worker)).collect();
        faults.extend(fault(&running).map(|fault| format!("{fault}: {running:?}")));
        before = now;
        std::thread::sleep(Duration::from_millis(20));
    }
    faults
}

/// What must never be: a replica twice, two on one slot, or a group beside another of the same job. In a resize a
/// survivor leads, so that only groups that start afresh have somebody who was started as rank 0.
fn fault(running: &[&WorkerProcess]) -> Option<&'static str> {
    let replicas: BTreeSet<u64> = running.iter().map(|worker| worker.replica).collect();
    let slots: BTreeSet<(&str, u32)> = running.iter().map(|worker| (worker.host.as_str(), worker.slot)).collect();
    let leaders: Vec<u64> = running.iter().filter(|worker| worker.rank == 0).map(|worker| worker.job).collect();
    if replicas.len() < running.len() {
        Some("a replica runs twice")
    } else if slots.len() < running.len() {
        Some("a slot is used twice")
    } else if leaders.iter().collect::<BTreeSet<_>>().len() < leaders.len() {
        Some("a job runs twice")
    } else {
        None
    }
}

/// Lets threads end also where the test goes wrong.
struct Stops<'a>([&'a AtomicBool; 2]);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|stop| stop.store(true, Ordering::Relaxed));
    }
}

/// Has a site used while something is killed so many times, and checks that nothing was lost and nothing ran twice. `mend` brings
/// everything back.
fn survive<'a>(site: &Site, kills: u32, kill: &mut dyn FnMut(u32, &mut Random), mend: impl FnOnce() -> Daemon + 'a) {
    let (stop_using, stop_watching) = (AtomicBool::new(false), AtomicBool::new(false));
    let (used, faults) = std::thread::scope(|scope| {
        let _stops = Stops([&stop_using, &stop_watching]);
        let user = scope.spawn(|| use_it(site, &stop_using));
        let watcher = scope.spawn(|| watch(site, &stop_watching));
        let mut random = Random(42);
        for number in 0..kills {
            kill(number, &mut random);
        }
        let daemon = mend();
        stop_using.store(true, Ordering::Relaxed);
        let used = user.join().unwrap();
        eventually("the end of every job", || {
            let jobs = site.jobs().unwrap();
            for job in jobs.iter().filter(|job| job.phase == Phase::Paused) {
                site.client().unwrap().act(job.id, JobAction::Resume).unwrap();
            }
            jobs.iter().all(|job| job.ended_ms.is_some()).then_some(())
        });
        stop_watching.store(true, Ordering::Relaxed);
        check_jobs(site, &used);
        daemon.end();
        (used, watcher.join().unwrap())
    });
    assert!(faults.is_empty(), "{faults:?}");
    assert!(workers(site.folder()).is_empty());
    let (jobs, cancelled) = (used.acknowledged.len(), used.cancelled.len());
    println!("killed {kills} times: {jobs} jobs acknowledged, {cancelled} of them to be cancelled, none lost");
}

#[test]
fn a_daemon_that_is_killed_a_hundred_times_loses_nothing_and_runs_nothing_twice() {
    let site = Site::new(&["--slots", "4", "--round-interval", "1", "--grace", "10"]);
    let mut grown = 0;
    let mut kill = |number: u32, random: &mut Random| {
        // Sometimes before it listens.
        let daemon = if number.is_multiple_of(4) { site.spawn() } else { site.start() };
        std::thread::sleep(Duration::from_millis(random.up_to(500)));
        daemon.kill();
        if number % 10 == 9 {
            grown += u32::from(trains_alone(&site));
        }
    };
    survive(&site, KILLS, &mut kill, || site.start());
    // How often depends on how busy the machine is, and on who happens to wait for the daemon to begin.
    println!("{grown} times an epoch was seen to end while no daemon was there");
}

#[test]
fn a_daemon_and_the_agents_of_four_machines_that_are_killed_again_and_again_lose_nothing_and_run_nothing_twice() {
    let site = Site::new(&["--slots", "0", "--round-interval", "1", "--grace", "10"]);
    let daemon = RefCell::new(Some(site.start()));
    let mut machines = Machines::new(&site);
    let names = ["one", "two", "three", "four"];
    names.iter().for_each(|name| machines.join(name));
    let mut kill = |number: u32, random: &mut Random| {
        let name = names[random.up_to(4) as usize];
        // The one, the other, or both.
        let (ends_daemon, ends_agent) = (!number.is_multiple_of(3), number % 3 != 1);
        if ends_agent {
            machines.kill(name);
        }
        if ends_daemon {
            daemon.take().unwrap().kill();
        }
        std::thread::sleep(Duration::from_millis(random.up_to(400)));
        if ends_agent {
            machines.spawn(name, &[]);
        }
        if ends_daemon {
            daemon.replace(Some(if number.is_multiple_of(4) { site.spawn() } else { site.start() }));
        }
        std::thread::sleep(Duration::from_millis(random.up_to(1_500)));
    };
    survive(&site, KILLS_OF_MACHINES, &mut kill, || {
        daemon.take().unwrap().kill();
        site.start()
    });
}

#[test]
fn a_training_goes_on_while_no_daemon_is_there() {
    let site = Site::new(&["--slots", "1"]);
    let daemon = site.start();
    let options = ["--epochs", "100000", "--samples", "1024", "-q"];
    let job = site.client().unwrap().submit(&site.training("alone", &options)).unwrap();
    eventually("the first epoch", || (!site.epochs("alone").is_empty()).then_some(()));
    daemon.kill();
    let before = site.epochs("alone").len();
    eventually("an epoch without a daemon", || (site.epochs("alone").len() > before).then_some(()));
    let daemon = site.start();
    site.client().unwrap().act(job.id, JobAction::Cancel).unwrap();
    eventually("its end", || workers(&site.state()).is_empty().then_some(()));
    daemon.end();
}

/// Whether training goes on while nobody schedules.
fn trains_alone(site: &Site) -> bool {
    let lines = || {
        let files = std::fs::read_dir(site.folder()).unwrap().map(|entry| entry.unwrap().path());
        let audits = files.filter(|path| path.extension().is_some_and(|extension| extension == "audit"));
        audits.map(|path| std::fs::read_to_string(path).unwrap_or_default().lines().count()).sum::<usize>()
    };
    let (before, deadline) = (lines(), Instant::now() + ALONE_MAX);
    while lines() == before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    lines() > before
}

/// What happened to a job, for people.
fn history(site: &Site, job: u64) -> String {
    let query = EventQuery { after: 0, job: Some(job), limit: Some(1_000) };
    let events = site.client().unwrap().events(query).unwrap().events;
    events.iter().map(|event| format!("{} {}\n", event.at_ms, event.text)).collect()
}

/// Every job that was acknowledged is there once, and has trained each sample of each epoch once, or was cancelled.
fn check_jobs(site: &Site, Used { acknowledged, cancelled }: &Used) {
    let jobs = site.jobs().unwrap();
    let mut by_name: BTreeMap<&str, Vec<&pollux_api::Job>> = BTreeMap::new();
    for job in &jobs {
        by_name.entry(&job.name).or_default().push(job);
    }
    for (name, id) in acknowledged {
        let [job] = by_name[name.as_str()][..] else {
            panic!("{name} is there {} times", by_name[name.as_str()].len())
        };
        assert_eq!(job.id, *id);
    }
    let resized: u32 = jobs.iter().map(|job| job.restarts).sum();
    // A worker that is told to leave while the daemon is away for long takes its group along, which starts again from the
    // checkpoint that it saved.
    let retried = jobs.iter().filter(|job| job.retries > 0).count();
    println!("{resized} resizes, {retried} jobs started again");
    for job in &jobs {
        if job.phase == Phase::Cancelled && cancelled.contains(&job.id) {
            continue;
        }
        assert_eq!(job.phase, Phase::Succeeded, "{}\n{}", job.name, history(site, job.id));
        let expected: Vec<(u32, u32)> = (1..=EPOCHS).map(|epoch| (epoch, SAMPLES)).collect();
        assert_eq!(site.epochs(&job.name), expected, "{}", job.name);
    }
}
