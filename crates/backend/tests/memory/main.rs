//! The cluster in memory does what every backend must do, faults included; its programs are real ones.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod shells;

use std::sync::Arc;

use pollux_backend::NodeInfo;
use pollux_backend::conformance::Trial;
use pollux_backend::memory::MemoryCluster;

use shells::Shells;

fn trial(test: &str) -> Trial {
    let cluster = MemoryCluster::new(Arc::new(Shells::new(test)));
    cluster.set_node(NodeInfo {
        name: "node".to_owned(),
        gpus: 4,
        gpu_type: "pretend".to_owned(),
        cpus: Some(8),
        memory: Some(1 << 30),
        address: "127.0.0.1".to_owned(),
        end: None,
    });
    let opened = cluster.clone();
    Trial::new(move |observer| opened.open(observer)).with_faults(cluster)
}

pollux_backend::conformance_tests!(trial);
