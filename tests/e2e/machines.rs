//! Machines that have joined a daemon: agents with folders and addresses of their own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use pollux_api::Node;

use crate::daemon::{Daemon, Site, eventually, program};
use crate::processes::{WorkerProcess, workers};

/// The agents of a site; they die with their test, and what they run with the site.
pub(crate) struct Machines<'a> {
    site: &'a Site,
    agents: BTreeMap<String, Daemon>,
    /// Machines that are in network namespaces, by name.
    places: BTreeMap<String, Place>,
}

/// A network namespace, and the address of a machine in it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) namespace: String,
    pub(crate) address: String,
}

impl<'a> Machines<'a> {
    pub(crate) const fn new(site: &'a Site) -> Self {
        Self { site, agents: BTreeMap::new(), places: BTreeMap::new() }
    }

    /// A machine is in a network namespace.
    pub(crate) fn place(&mut self, name: &str, place: Place) {
        self.places.insert(name.to_owned(), place);
    }

    /// The address under which a machine is reached: one for each name.
    fn address(&self, name: &str) -> String {
        if let Some(place) = self.places.get(name) {
            return place.address.clone();
        }
        let number: u32 = name.bytes().map(u32::from).sum();
        format!("127.0.1.{}", number % 250 + 1)
    }

    /// Where jobs save on a machine.
    pub(crate) fn saved(&self, name: &str) -> PathBuf {
        self.site.folder().join(name).join("saved")
    }

    /// A machine with one slot that does not share its disk, with a token if it is to join.
    fn command(&self, name: &str, options: &[&str]) -> Command {
        let mut command = match self.places.get(name) {
            Some(place) => {
                let mut inside = Command::new("ip");
                inside.args(["netns", "exec", &place.namespace]).arg(program("pollux"));
                inside
            }
            None => Command::new(program("pollux")),
        };
        command.args(["node", "--join", &self.site.url(), "--name", name, "--slots", "1"]);
        command.args(["--address", &self.address(name), "--state"]).arg(self.site.folder().join(name));
        command.arg("--checkpoint-dir").arg(self.saved(name)).args(options);
        let talk = File::options().create(true).append(true).open(self.site.folder().join("daemon.log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(talk);
        for variable in ["POLLUX_URL", "POLLUX_TOKEN", "POLLUX_STATE"] {
            command.env_remove(variable);
        }
        command
    }

    /// A machine joins.
    pub(crate) fn join(&mut self, name: &str) {
        let token = self.site.client().unwrap().issue_node_token(3_600).unwrap().token;
        let file = self.site.folder().join(format!("{name}.token"));
        fs::write(&file, token).unwrap();
        self.spawn(name, &["--token-file", file.to_str().unwrap()]);
        eventually("a machine joins", || self.node(name).filter(|node| !node.is_unreachable).map(drop));
    }

    /// The agent of a machine that has joined.
    pub(crate) fn spawn(&mut self, name: &str, options: &[&str]) {
        let child = self.command(name, options).spawn().unwrap();
        self.agents.insert(name.to_owned(), Daemon { child });
    }

    /// Waits until an agent ends by itself.
    pub(crate) fn end_of(&mut self, name: &str) -> Option<i32> {
        let agent = self.agents.get_mut(name).unwrap();
        let status = eventually("the end of an agent", || agent.child.try_wait().unwrap());
        self.agents.remove(name);
        status.code()
    }

    /// `SIGKILL` to the agent; what runs there runs on.
    pub(crate) fn kill(&mut self, name: &str) {
        self.agents.remove(name).unwrap().kill();
    }

    pub(crate) fn node(&self, name: &str) -> Option<Node> {
        self.site.client().ok()?.nodes().ok()?.nodes.into_iter().find(|node| node.name == name)
    }

    /// What runs on a machine.
    pub(crate) fn workers(&self, name: &str) -> Vec<WorkerProcess> {
        let address = self.address(name);
        workers(self.site.folder()).into_iter().filter(|worker| worker.host == address).collect()
    }
}
