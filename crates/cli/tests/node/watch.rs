//! What a backend observes of machines that have joined.

use std::sync::mpsc::{self, Receiver};

use pollux_backend::{Observation, ReplicaOrder};
use pollux_backend_remote::RemoteBackend;

use crate::site::{PATIENCE, Site};

/// A backend, and what it observes.
pub(crate) fn watched(site: &Site) -> (Box<RemoteBackend>, Receiver<Observation>) {
    let (sender, seen) = mpsc::channel();
    (site.open(Box::new(move |observation| drop(sender.send(observation)))), seen)
}

pub(crate) fn wait_for(seen: &Receiver<Observation>, wanted: impl Fn(&Observation) -> bool) {
    while !wanted(&seen.recv_timeout(PATIENCE).expect("it is observed")) {}
}

pub(crate) fn order(epoch: u64, command: &[&str]) -> ReplicaOrder {
    serde_json::from_value(serde_json::json!({
        "epoch": epoch, "replica": 1, "job": 1, "node": "gpu1", "gpus": 1, "shares_with": null,
        "command": command, "working_dir": "/", "environment": {}
    }))
    .unwrap()
}
