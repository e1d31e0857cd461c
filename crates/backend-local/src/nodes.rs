//! What the machine looks like to the scheduler: nodes, and the slots that replicas take on them.

use std::collections::BTreeMap;

use pollux_backend::{NodeInfo, Observation};
use tracing::warn;

use crate::gpus::{Gpu, discover};
use crate::machine::{ADDRESS, Machine};
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
    /// Its part of the machine.
    pub(crate) machine: Machine,
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
        Observation::NodeUp(NodeInfo {
            name: self.name.clone(),
            gpus: u32::try_from(self.slots.len()).expect("slots are few"),
            gpu_type: self.gpu_type.clone(),
            cpus: Some(self.machine.cpus),
            memory: Some(self.machine.memory),
            address: ADDRESS.to_owned(),
        })
    }

    /// What tells a worker which slots it has. One without GPUs sees none of those that others may use.
    pub(crate) fn environment(&self, slots: &[u32]) -> BTreeMap<String, String> {
        let list = slots.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let visible = if self.on_gpus { list.clone() } else { String::new() };
        let variables = [
            ("POLLUX_SLOT", list),
            ("CUDA_VISIBLE_DEVICES", visible),
            // By default CUDA counts the fastest first, the driver by bus.
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        ];
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// The nodes of this machine under a layout.
pub(crate) fn nodes(layout: NodeLayout) -> Result<Vec<Node>, LocalError> {
    let machine = Machine::this();
    match layout {
        NodeLayout::Gpus => {
            let gpus = discover()?;
            if gpus.is_empty() {
                return pretend(1, machine.cpus.min(SLOTS_MAX), &[], machine);
            }
            Ok(by_kind(&gpus, machine))
        }
        NodeLayout::Slots(slots) => pretend(1, slots, &[], machine),
        NodeLayout::Nodes { nodes, slots } => {
            // Whoever plays with pretend nodes can do so beside a broken driver.
            let gpus = discover().unwrap_or_else(|error| {
                warn!(%error, "the slots of pretend nodes are without GPUs");
                Vec::new()
            });
            pretend(nodes, slots, &gpus, machine)
        }
    }
}

/// A node for every kind of GPU; they share the CPUs and the memory of the machine.
fn by_kind(gpus: &[Gpu], machine: Machine) -> Vec<Node> {
    let mut kinds: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for gpu in gpus {
        kinds.entry(&gpu.name).or_default().push(gpu.index);
    }
    let several = kinds.len() > 1;
    let parts = machine.divided(&kinds.values().map(Vec::len).collect::<Vec<_>>());
    let nodes = kinds.into_iter().zip(parts).enumerate().map(|(idx, ((kind, slots), machine))| Node {
        name: name(idx, several),
        gpu_type: kind.to_owned(),
        slots,
        on_gpus: true,
        machine,
    });
    nodes.collect()
}

fn pretend(nodes: u32, slots: u32, gpus: &[Gpu], machine: Machine) -> Result<Vec<Node>, LocalError> {
    let total = nodes.saturating_mul(slots);
    if !(1..=SLOTS_MAX).contains(&total) {
        return Err(LocalError::Layout { nodes, slots, limit: SLOTS_MAX });
    }
    let parts = machine.divided(&vec![slots as usize; nodes as usize]);
    // A node has GPUs of one kind: where that does not come out even, the slots are without.
    let kinds = |gpus: &[Gpu]| gpus.chunks(slots as usize).all(|node| node.iter().all(|gpu| gpu.name == node[0].name));
    let on_gpus = gpus.get(..total as usize).is_some_and(kinds);
    let numbers: Vec<u32> = if on_gpus { gpus.iter().map(|gpu| gpu.index).collect() } else { (0..total).collect() };
    let node = |((idx, slots), machine): ((usize, &[u32]), Machine)| Node {
        name: name(idx, nodes > 1),
        gpu_type: if on_gpus { gpus[idx * slots.len()].name.clone() } else { CPU.to_owned() },
        slots: slots.to_vec(),
        on_gpus,
        machine,
    };
    Ok(numbers[..total as usize].chunks(slots as usize).enumerate().zip(parts).map(node).collect())
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

    const MACHINE: Machine = Machine { cpus: 8, memory: 64 };

    fn shown(nodes: &[Node]) -> Vec<String> {
        nodes.iter().map(|node| format!("{} {} {:?}", node.name, node.gpu_type, node.slots)).collect()
    }

    #[test]
    fn gpus_of_one_kind_are_one_node() {
        assert_eq!(shown(&by_kind(&gpus(&["A100", "A100"]), MACHINE)), ["local A100 [0, 1]"]);
        let two = by_kind(&gpus(&["V100", "A100", "V100", "V100"]), MACHINE);
        assert_eq!(shown(&two), ["local-0 A100 [1]", "local-1 V100 [0, 2, 3]"]);
        assert_eq!(two[1].machine, Machine { cpus: 6, memory: 48 });
    }

    #[test]
    fn pretend_nodes_divide_the_gpus_if_there_are_enough() {
        let four = gpus(&["A100"; 4]);
        assert_eq!(shown(&pretend(2, 2, &four, MACHINE).unwrap()), ["local-0 A100 [0, 1]", "local-1 A100 [2, 3]"]);
        assert_eq!(shown(&pretend(2, 1, &four, MACHINE).unwrap()), ["local-0 A100 [0]", "local-1 A100 [1]"]);
        assert_eq!(
            shown(&pretend(3, 2, &four, MACHINE).unwrap()),
            ["local-0 cpu [0, 1]", "local-1 cpu [2, 3]", "local-2 cpu [4, 5]"]
        );
        let mixed = gpus(&["A100", "V100", "V100", "V100"]);
        assert_eq!(shown(&pretend(2, 2, &mixed, MACHINE).unwrap()), ["local-0 cpu [0, 1]", "local-1 cpu [2, 3]"]);
        assert_eq!(shown(&pretend(2, 1, &mixed, MACHINE).unwrap()), ["local-0 A100 [0]", "local-1 V100 [1]"]);
        assert_eq!(shown(&pretend(1, 2, &[], MACHINE).unwrap()), ["local cpu [0, 1]"]);
    }

    #[test]
    fn workers_see_the_gpus_of_their_slots_and_no_others() {
        let variables = |nodes: Vec<Node>, slots: &[u32]| {
            let environment = nodes[0].environment(slots);
            environment.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let on_gpus = variables(by_kind(&gpus(&["A100"; 4]), MACHINE), &[1, 3]);
        assert_eq!(on_gpus, ["CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=1,3", "POLLUX_SLOT=1,3"]);
        let without = variables(pretend(1, 4, &[], MACHINE).unwrap(), &[2]);
        assert_eq!(without, ["CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=", "POLLUX_SLOT=2"]);
    }
}
