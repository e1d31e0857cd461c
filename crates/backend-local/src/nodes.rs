//! What the machine looks like to the scheduler: nodes, and the slots that replicas take on them.

use std::collections::BTreeMap;

use pollux_backend::{NodeInfo, Observation};
use tracing::warn;

use crate::gpus::{Gpu, discover};
use crate::machine::Machine;
use crate::{LocalError, MachineIdentity, NodeLayout};

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
    /// The host under which its replicas are reached.
    address: String,
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
    /// The host under which its replicas are reached.
    pub address: String,
}

impl Node {
    pub(crate) fn summary(&self) -> NodeSummary {
        let slots = u32::try_from(self.slots.len()).expect("slots are few");
        let (name, gpu_type, address) = (self.name.clone(), self.gpu_type.clone(), self.address.clone());
        NodeSummary { name, slots, gpu_type, on_gpus: self.on_gpus, address }
    }

    pub(crate) fn observation(&self) -> Observation {
        Observation::NodeUp(NodeInfo {
            name: self.name.clone(),
            gpus: u32::try_from(self.slots.len()).expect("slots are few"),
            gpu_type: self.gpu_type.clone(),
            cpus: Some(self.machine.cpus),
            memory: Some(self.machine.memory),
            address: self.address.clone(),
            end: None,
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
pub(crate) fn nodes(layout: NodeLayout, identity: &MachineIdentity) -> Result<Vec<Node>, LocalError> {
    let mut nodes = found(layout, identity)?;
    if let Some(gpu_type) = &identity.gpu_type {
        nodes.iter_mut().for_each(|node| node.gpu_type.clone_from(gpu_type));
    }
    Ok(nodes)
}

fn found(layout: NodeLayout, identity: &MachineIdentity) -> Result<Vec<Node>, LocalError> {
    let machine = Machine::this();
    match layout {
        NodeLayout::Nothing => Ok(Vec::new()),
        NodeLayout::Gpus => {
            let gpus = discover()?;
            if gpus.is_empty() {
                return pretend(1, machine.cpus.min(SLOTS_MAX), &[], machine, identity);
            }
            Ok(by_kind(&gpus, machine, identity))
        }
        NodeLayout::Slots(slots) => pretend(1, slots, &[], machine, identity),
        NodeLayout::Nodes { nodes, slots } => {
            // Whoever plays with pretend nodes can do so beside a broken driver.
            let gpus = discover().unwrap_or_else(|error| {
                warn!(%error, "the slots of pretend nodes are without GPUs");
                Vec::new()
            });
            pretend(nodes, slots, &gpus, machine, identity)
        }
    }
}

/// A node for every kind of GPU; they share the CPUs and the memory of the machine.
fn by_kind(gpus: &[Gpu], machine: Machine, identity: &MachineIdentity) -> Vec<Node> {
    let mut kinds: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for gpu in gpus {
        kinds.entry(&gpu.name).or_default().push(gpu.index);
    }
    let several = kinds.len() > 1;
    let parts = machine.divided(&kinds.values().map(Vec::len).collect::<Vec<_>>());
    let nodes = kinds.into_iter().zip(parts).enumerate().map(|(idx, ((kind, slots), machine))| Node {
        name: name(idx, several, identity),
        gpu_type: kind.to_owned(),
        slots,
        on_gpus: true,
        machine,
        address: identity.address.clone(),
    });
    nodes.collect()
}

fn pretend(
    nodes: u32,
    slots: u32,
    gpus: &[Gpu],
    machine: Machine,
    identity: &MachineIdentity,
) -> Result<Vec<Node>, LocalError> {
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
        name: name(idx, nodes > 1, identity),
        gpu_type: if on_gpus { gpus[idx * slots.len()].name.clone() } else { CPU.to_owned() },
        slots: slots.to_vec(),
        on_gpus,
        machine,
        address: identity.address.clone(),
    };
    Ok(numbers[..total as usize].chunks(slots as usize).enumerate().zip(parts).map(node).collect())
}

fn name(idx: usize, several: bool, MachineIdentity { name, .. }: &MachineIdentity) -> String {
    if several { format!("{name}-{idx}") } else { name.clone() }
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

    fn by_kind(gpus: &[Gpu], machine: Machine) -> Vec<Node> {
        super::by_kind(gpus, machine, &MachineIdentity::default())
    }

    fn pretend(nodes: u32, slots: u32, gpus: &[Gpu], machine: Machine) -> Result<Vec<Node>, LocalError> {
        super::pretend(nodes, slots, gpus, machine, &MachineIdentity::default())
    }

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

    #[test]
    fn a_machine_that_joins_has_its_own_name_address_and_type() {
        let identity = MachineIdentity {
            name: "gpu1".to_owned(),
            address: "10.0.0.7".to_owned(),
            gpu_type: Some("L4".to_owned()),
        };
        let one = nodes(NodeLayout::Slots(2), &identity).unwrap();
        assert_eq!((shown(&one), one[0].address.as_str()), (vec!["gpu1 L4 [0, 1]".to_owned()], "10.0.0.7"));
        assert_eq!(
            shown(&super::pretend(2, 1, &[], MACHINE, &identity).unwrap()),
            ["gpu1-0 cpu [0]", "gpu1-1 cpu [1]"]
        );
        assert!(nodes(NodeLayout::Nothing, &identity).unwrap().is_empty());
    }
}
