//! Machines that are cut off, in network namespaces; and a scheduler that pretends to be another.

use std::process::{Command, Stdio};
use std::time::Duration;

use pollux_client::JobAction;
use pollux_job::{JobSpec, Phase};

use crate::daemon::{Site, eventually};
use crate::faults::skipped;
use crate::machines::{Machines, Place};
use crate::processes::{WorkerProcess, workers};

const ENDLESS: [&str; 7] = ["--epochs", "1000000", "--samples", "1024", "--pace", "good", "-q"];

/// Two networks of this machine, each with a machine in it; they are gone with the test.
struct Networks {
    names: [String; 2],
    subnet: u32,
}

fn ip(arguments: &str) -> bool {
    let mut ip = Command::new("ip");
    ip.args(arguments.split(' ')).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    ip.status().is_ok_and(|status| status.success())
}

impl Networks {
    /// `None`, with a word about it, where this user may not make any.
    fn make() -> Option<Self> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let number = std::process::id() % 30_000 + next;
        let names = ["a", "b"].map(|name| format!("px{number}{name}"));
        let networks = Self { names, subnet: number % 120 * 2 };
        let made = [0, 1].iter().all(|&machine| networks.make_one(machine));
        if !made {
            skipped("network namespaces cannot be made here: `ip netns add` is for root");
        }
        made.then_some(networks)
    }

    fn make_one(&self, machine: usize) -> bool {
        let (name, [outer, inner]) = (&self.names[machine], [1, 2].map(|host| self.address(machine, host)));
        [
            format!("netns add {name}"),
            format!("link add {name} type veth peer name eth0 netns {name}"),
            format!("addr add {outer}/24 dev {name}"),
            format!("link set {name} up"),
            format!("-n {name} addr add {inner}/24 dev eth0"),
            format!("-n {name} link set lo up"),
            format!("-n {name} link set eth0 up"),
            format!("-n {name} route add default via {outer}"),
        ]
        .iter()
        .all(|command| ip(command))
    }

    /// Host 1 is the scheduler's machine, 2 is that of the network.
    fn address(&self, machine: usize, host: u32) -> String {
        format!("10.213.{}.{host}", self.subnet + machine as u32)
    }

    fn place(&self, machine: usize) -> Place {
        Place { namespace: self.names[machine].clone(), address: self.address(machine, 2) }
    }

    fn cut(&self, machine: usize) {
        assert!(ip(&format!("link set {} down", self.names[machine])));
    }

    fn heal(&self, machine: usize) {
        assert!(ip(&format!("link set {} up", self.names[machine])));
    }

    /// Whether everything that a machine says comes later from now on.
    fn delay(&self, machine: usize, delay: &str) -> bool {
        let name = &self.names[machine];
        let arguments = ["netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", delay];
        let mut tc = Command::new("ip");
        tc.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        tc.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("link del {name}"));
            ip(&format!("netns del {name}"));
        }
    }
}

fn only_one(site: &Site, name: &str) -> JobSpec {
    JobSpec { replicas_max: Some(1), ..site.training(name, &ENDLESS) }
}

/// No slot of any machine is used by two replicas.
fn assert_no_slot_is_used_twice(site: &Site) {
    let running = workers(site.folder());
    let place = |worker: &WorkerProcess| (worker.host.clone(), worker.slot);
    let mut slots: Vec<(String, u32)> = running.iter().map(place).collect();
    slots.sort();
    slots.dedup();
    assert_eq!(slots.len(), running.len(), "{running:?}");
}

#[test]
fn a_machine_that_is_cut_off_keeps_what_it_has_and_is_given_nothing_twice_when_it_is_back() {
    let Some(networks) = Networks::make() else { return };
    let site = Site::over_tls(&networks.address(0, 1), &["--slots", "0", "--round-interval", "1", "--grace", "2"]);
    let _daemon = site.start();
    let client = site.client().unwrap();
    let mut machines = Machines::new(&site);
    for (number, name) in ["far", "near"].into_iter().enumerate() {
        machines.place(name, networks.place(number));
    }
    machines.join("far");
    let first = client.submit(&only_one(&site, "first")).unwrap().id;
    eventually("the first job", || (machines.workers("far").len() == 1).then_some(()));
    let before = machines.workers("far");
    machines.join("near");
    let second = client.submit(&only_one(&site, "second")).unwrap().id;
    eventually("the second job", || (machines.workers("near").len() == 1).then_some(()));
    let third = client.submit(&only_one(&site, "third")).unwrap().id;

    networks.cut(0);
    eventually("it is missed", || machines.node("far").filter(|node| node.is_unreachable).map(drop));
    // What runs there runs on, and whoever waits goes on waiting.
    assert_eq!(machines.workers("far"), before);
    assert_eq!(machines.workers("near").len(), 1);
    assert_no_slot_is_used_twice(&site);
    networks.heal(0);
    eventually("it is back", || machines.node("far").filter(|node| !node.is_unreachable).map(drop));
    assert_eq!(machines.workers("far"), before);
    assert_eq!(client.job(first).unwrap().job.restarts, 0);

    // Cancelled while it cannot hear of it.
    networks.cut(0);
    eventually("it is missed again", || machines.node("far").filter(|node| node.is_unreachable).map(drop));
    client.act(first, JobAction::Cancel).unwrap();
    client.act(second, JobAction::Pause).unwrap();
    eventually("the third job", || {
        assert_no_slot_is_used_twice(&site);
        machines.workers("near").iter().any(|worker| worker.job == third).then_some(())
    });
    assert_eq!(machines.workers("far"), before, "nobody can tell it to end");
    client.act(second, JobAction::Resume).unwrap();
    networks.heal(0);
    eventually("the second job at the machine that is back", || {
        assert_no_slot_is_used_twice(&site);
        machines.workers("far").iter().any(|worker| worker.job == second).then_some(())
    });
    assert_eq!(client.job(first).unwrap().job.phase, Phase::Cancelled);

    if networks.delay(0, "400ms") {
        client.act(second, JobAction::Pause).unwrap();
        client.act(second, JobAction::Resume).unwrap();
        eventually("it hears of it, late", || {
            assert_no_slot_is_used_twice(&site);
            let node = machines.node("far").filter(|node| !node.is_unreachable)?;
            (node.gpus_held == 1 && machines.workers("far").len() == 1).then_some(())
        });
    } else {
        skipped("delays of a network: this kernel has no netem");
    }
    for job in [second, third] {
        client.act(job, JobAction::Cancel).unwrap();
    }
    eventually("their end", || workers(site.folder()).is_empty().then_some(()));
}

#[test]
fn a_machine_that_was_removed_while_it_was_cut_off_ends_what_it_runs_when_it_is_back() {
    let Some(networks) = Networks::make() else { return };
    let site = Site::over_tls(&networks.address(0, 1), &["--slots", "0", "--round-interval", "1", "--grace", "2"]);
    let _daemon = site.start();
    let client = site.client().unwrap();
    let mut machines = Machines::new(&site);
    for (number, name) in ["far", "near"].into_iter().enumerate() {
        machines.place(name, networks.place(number));
    }
    machines.join("far");
    let job = client.submit(&only_one(&site, "moves")).unwrap().id;
    eventually("the job", || (machines.workers("far").len() == 1).then_some(()));
    machines.join("near");
    networks.cut(0);
    eventually("it is missed", || machines.node("far").filter(|node| node.is_unreachable).map(drop));
    assert!(machines.workers("near").is_empty(), "it may still train there");
    client.remove_machine("far").unwrap();
    eventually("the job elsewhere", || (machines.workers("near").len() == 1).then_some(()));
    networks.heal(0);
    eventually("its end there", || machines.workers("far").is_empty().then_some(()));
    assert_eq!(machines.end_of("far"), Some(1));
    assert!(site.talk().contains("far was removed from this cluster"), "{}", site.talk());
    assert_eq!(machines.workers("near").len(), 1);
    client.act(job, JobAction::Cancel).unwrap();
    eventually("its end", || workers(site.folder()).is_empty().then_some(()));
}

#[test]
fn a_scheduler_with_another_certificate_is_told_nothing() {
    let site = Site::over_tls("127.0.0.1", &["--slots", "0", "--round-interval", "1"]);
    let daemon = site.start();
    let mut machines = Machines::new(&site);
    machines.join("gpu1");
    let job = site.client().unwrap().submit(&only_one(&site, "stays")).unwrap().id;
    eventually("the job", || (machines.workers("gpu1").len() == 1).then_some(()));
    let before = machines.workers("gpu1");
    daemon.end();
    let impostor = site.impostor();
    let hostile = impostor.start();
    let line = "it shows a certificate that is not the one that the token names";
    let said = || site.talk().lines().filter(|said| said.contains(line)).count();
    eventually("the refusal", || (said() > 0).then_some(()));
    // It tries again meanwhile, and says nothing more.
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(said(), 1, "{}", site.talk());
    assert!(impostor.client().unwrap().nodes().unwrap().nodes.is_empty());
    assert!(!impostor.talk().contains("gpu1"), "{}", impostor.talk());
    hostile.end();
    let _daemon = site.start();
    eventually("it is back", || machines.node("gpu1").filter(|node| !node.is_unreachable).map(drop));
    assert_eq!(machines.workers("gpu1"), before);
    let client = site.client().unwrap();
    client.act(job, JobAction::Cancel).unwrap();
    eventually("its end", || workers(site.folder()).is_empty().then_some(()));
}
