//! What the fake GPUs of a node have seen: the proof that none was given twice.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;

use crate::error::{TestbedError, at};

/// One line of a record.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct GpuEvent {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Which GPUs it is about.
    pub devices: Vec<String>,
    /// What happened.
    #[serde(flatten)]
    pub kind: GpuEventKind,
}

/// What happened to GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum GpuEventKind {
    /// The kubelet took them for a container that is to start.
    Allocated {
        /// Names the allocation; it is `FAKE_GPU_ALLOCATION` in the environment of the container's processes.
        allocation: String,
        /// Earlier allocations of the same GPUs of which processes still run.
        #[serde(default)]
        running: Vec<String>,
    },
    /// The kubelet says that a container has them.
    Held(Holder),
    /// The kubelet says that it has them no more.
    Released(Holder),
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Holder {
    /// The namespace of its pod.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Its name in the pod.
    pub container: String,
}

/// The events of one node in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuRecord {
    /// From the first on.
    pub events: Vec<GpuEvent>,
}

impl GpuRecord {
    /// A node that has not started its GPUs yet has an empty record.
    pub(crate) fn read(path: &Path) -> Result<Self, TestbedError> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            other => other.map_err(at(path))?,
        };
        // The last line may be about to be written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let events = whole.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        Ok(Self { events: events.map_err(io::Error::other).map_err(at(path))? })
    }

    /// Every pod that ever had GPUs here, with them.
    #[must_use]
    pub fn pods(&self) -> Vec<(&str, &[String])> {
        let mut pods = Vec::new();
        for event in &self.events {
            if let GpuEventKind::Held(holder) = &event.kind {
                pods.push((holder.pod.as_str(), event.devices.as_slice()));
            }
        }
        pods
    }

    /// One sentence for every time that a GPU was given to somebody while another had it.
    #[must_use]
    pub fn given_twice(&self) -> Vec<String> {
        let mut holders: BTreeMap<&str, &Holder> = BTreeMap::new();
        let mut found = Vec::new();
        for GpuEvent { at_ms, devices, kind } in &self.events {
            match kind {
                GpuEventKind::Allocated { allocation, running } => {
                    for other in running {
                        found.push(format!("{at_ms}: {allocation} was given while processes of {other} ran"));
                    }
                }
                GpuEventKind::Held(holder) => {
                    for device in devices {
                        match holders.insert(device, holder) {
                            Some(other) if other != holder => found.push(format!(
                                "{at_ms}: {} got {device} while {} had it",
                                holder.path(),
                                other.path(),
                            )),
                            _ => {}
                        }
                    }
                }
                GpuEventKind::Released(holder) => {
                    for device in devices {
                        if holders.get(device.as_str()) == Some(&holder) {
                            holders.remove(device.as_str());
                        }
                    }
                }
            }
        }
        found
    }
}

impl Holder {
    fn path(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(lines: &[&str]) -> GpuRecord {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpus.jsonl");
        fs::write(&path, lines.join("\n")).unwrap();
        GpuRecord::read(&path).unwrap()
    }

    const A: &str = r#"{"at_ms":2,"event":"held","devices":["GPU-0"],"namespace":"x","pod":"a","container":"c"}"#;
    const A_GONE: &str =
        r#"{"at_ms":3,"event":"released","devices":["GPU-0"],"namespace":"x","pod":"a","container":"c"}"#;
    const B: &str = r#"{"at_ms":5,"event":"held","devices":["GPU-0"],"namespace":"x","pod":"b","container":"c"}"#;

    #[test]
    fn gpus_that_are_handed_on_are_not_given_twice() {
        let given = r#"{"at_ms":1,"event":"allocated","devices":["GPU-0"],"allocation":"7.1/GPU-0"}"#;
        let record = record(&[given, A, A_GONE, given, B, "{\"half"]);
        assert_eq!(record.given_twice(), Vec::<String>::new());
        assert_eq!(record.pods(), [("a", ["GPU-0".to_owned()].as_slice()), ("b", &["GPU-0".to_owned()])]);
    }

    #[test]
    fn a_gpu_that_another_pod_holds_is_given_twice() {
        assert_eq!(record(&[A, B, ""]).given_twice(), ["5: x/b/c got GPU-0 while x/a/c had it"]);
    }

    #[test]
    fn a_gpu_whose_old_processes_run_is_given_twice() {
        let given =
            r#"{"at_ms":4,"event":"allocated","devices":["GPU-0"],"allocation":"7.2/GPU-0","running":["7.1/GPU-0"]}"#;
        let record = record(&[A, A_GONE, given, ""]);
        assert_eq!(record.given_twice(), ["4: 7.2/GPU-0 was given while processes of 7.1/GPU-0 ran"]);
    }
}
