//! What the machine looks like to the scheduler: nodes, and the slots that replicas take on them.

use std::collections::BTreeMap;
use std::thread;

use pollux_backend::Observation;

use crate::gpus::{Gpu, discover};
use crate::{LocalError, NodeLayout};

/// As many as any node may have.
const SLOTS_MAX: u32 = 1_024;

/// What the kind of a slot without a GPU is called.
const CPU: &str = "cpu";

/// A node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    gpu_type: String,
    /// Numbers that are unique on this machine, so that a slot that is taken stays so under another layout; of GPUs
    /// their index.
    pub(crate) slots: Vec<u32>,
    on_gpus: bool,
}

/// A node as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSummary {
    /// Its name.
    pub name: String,
    /// Its slots.
    pub slots: u32,
    /// Their kind.
    pub gpu_type: String,
    /// Whether each slot is a GPU.
    pub on_gpus: bool,
}

impl Node {
    pub(crate) fn summary(&self) -> NodeSummary {
        let slots = u32::try_from(self.slots.len()).expect("slots are few");
        NodeSummary { name: self.name.clone(), slots, gpu_type: self.gpu_type.clone(), on_gpus: self.on_gpus }
    }

    pub(crate) fn observation(&self) -> Observation {
        let gpus = u32::try_from(self.slots.len()).expect("slots are few");
        Observation::NodeUp { node: self.name.clone(), gpus, gpu_type: self.gpu_type.clone() }
    }

    /// What tells a worker which slots it has.
    pub(crate) fn environment(&self, slots: &[u32]) -> BTreeMap<String, String> {
        let list = slots.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut environment = BTreeMap::from([("POLLUX_SLOT".to_owned(), list.clone())]);
        if self.on_gpus {
            environment.insert("CUDA_VISIBLE_DEVICES".to_owned(), list);
            // By default CUDA counts the fastest first, the driver by bus.
            environment.insert("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned());
        }
        environment
    }
}

/// The nodes of this machine under a layout.
pub(crate) fn nodes(layout: NodeLayout) -> Result<Vec<Node>, LocalError> {
    match layout {
        NodeLayout::Gpus => {
            let gpus = discover()?;
            if gpus.is_empty() {
                let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
                return pretend(1, u32::try_from(cores).unwrap_or(SLOTS_MAX).min(SLOTS_MAX), &[]);
            }
            Ok(by_kind(&gpus))
        }
        NodeLayout::Slots(slots) => pretend(1, slots, &[]),
        // Whoever plays with pretend nodes can do so beside a broken driver.
        NodeLayout::Nodes { nodes, slots } => pretend(nodes, slots, &discover().unwrap_or_default()),
    }
}

/// A node for every kind of GPU.
fn by_kind(gpus: &[Gpu]) -> Vec<Node> {
    let mut kinds: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for gpu in gpus {
        kinds.entry(&gpu.name).or_default().push(gpu.index);
    }
    let several = kinds.len() > 1;
    let nodes = kinds.into_iter().enumerate().map(|(idx, (kind, slots))| Node {
        name: name(idx, several),
        gpu_type: kind.to_owned(),
        slots,
        on_gpus: true,
    });
    nodes.collect()
}

fn pretend(nodes: u32, slots: u32, gpus: &[Gpu]) -> Result<Vec<Node>, LocalError> {
    let total = nodes.saturating_mul(slots);
    if !(1..=SLOTS_MAX).contains(&total) {
        return Err(LocalError::Layout { nodes, slots, limit: SLOTS_MAX });
    }
    let on_gpus = gpus.len() >= total as usize;
    let numbers: Vec<u32> = if on_gpus { gpus.iter().map(|gpu| gpu.index).collect() } else { (0..total).collect() };
    let node = |(idx, slots): (usize, &[u32])| Node {
        name: name(idx, nodes > 1),
        gpu_type: if on_gpus { gpus[idx * slots.len()].name.clone() } else { CPU.to_owned() },
        slots: slots.to_vec(),
        on_gpus,
    };
    Ok(numbers[..total as usize].chunks(slots as usize).enumerate().map(node).collect())
}

fn name(idx: usize, several: bool) -> String {
    if several { format!("local-{idx}") } else { "local".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::parse;

    fn gpus(kinds: &[&str]) -> Vec<Gpu> {
        let lines = kinds.iter().enumerate().map(|(idx, kind)| format!("{idx}, GPU-{idx}, {kind}\n"));
        parse(&lines.collect::<String>()).unwrap()
    }

    fn shown(nodes: &[Node]) -> Vec<String> {
        nodes.iter().map(|node| format!("{} {} {:?}", node.name, node.gpu_type, node.slots)).collect()
    }

    #[test]
    fn gpus_of_one_kind_are_one_node() {
        assert_eq!(shown(&by_kind(&gpus(&["A100", "A100"]))), ["local A100 [0, 1]"]);
        assert_eq!(shown(&by_kind(&gpus(&["V100", "A100", "V100"]))), ["local-0 A100 [1]", "local-1 V100 [0, 2]"]);
    }

    #[test]
    fn pretend_nodes_divide_the_gpus_if_there_are_enough() {
        let four = gpus(&["A100"; 4]);
        assert_eq!(shown(&pretend(2, 2, &four).unwrap()), ["local-0 A100 [0, 1]", "local-1 A100 [2, 3]"]);
        assert_eq!(shown(&pretend(2, 1, &four).unwrap()), ["local-0 A100 [0]", "local-1 A100 [1]"]);
        assert_eq!(
            shown(&pretend(3, 2, &four).unwrap()),
            ["local-0 cpu [0, 1]", "local-1 cpu [2, 3]", "local-2 cpu [4, 5]"]
        );
        assert_eq!(shown(&pretend(1, 2, &[]).unwrap()), ["local cpu [0, 1]"]);
    }

    #[test]
    fn workers_see_the_gpus_of_their_slots_and_no_others() {
        let variables = |nodes: Vec<Node>, slots: &[u32]| {
            let environment = nodes[0].environment(slots);
            environment.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let on_gpus = variables(by_kind(&gpus(&["A100"; 4])), &[1, 3]);
        assert_eq!(on_gpus, ["CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=1,3", "POLLUX_SLOT=1,3"]);
        assert_eq!(variables(pretend(1, 4, &[]).unwrap(), &[2]), ["POLLUX_SLOT=2"]);
    }
}
