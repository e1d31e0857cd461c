//! Which machines leave before Slurm takes their nodes away, or because they have nothing to do.

use crate::queue::{Allocation, Queue, Stage};
use crate::queues::{Machine, Opened};
use crate::turn::Orders;

/// Finds the nodes that are to be emptied because they end or are given back, and the machines that are to leave because they
/// are empty then, or have been idle for long.
pub(crate) fn unneeded(opened: &mut Opened, now_ms: u64, machines: &[Machine], orders: &mut Orders) {
    let idle = &mut opened.idle_since_ms;
    idle.retain(|name, _| machines.iter().any(|it| it.name == *name && is_idle(it)));
    for machine in machines.iter().filter(|it| is_idle(it)) {
        idle.entry(machine.name.clone()).or_insert(now_ms);
    }
    for queue in opened.journal.queues() {
        for allocation in queue.allocations.iter().filter(|it| it.stage == Stage::Runs) {
            let ends = allocation.given_up.is_some() || ends_soon(queue, allocation, now_ms);
            for machine in machines.iter().filter(|it| allocation.has_machine(&queue.spec.name, &it.name)) {
                if ends {
                    let nodes = machine.nodes.iter().filter(|node| !node.is_draining);
                    orders.drain.extend(nodes.map(|node| node.name.clone()));
                }
                let patience_ms = if ends { 0 } else { queue.spec.idle_timeout_s.saturating_mul(1_000) };
                if idle.get(&machine.name).is_some_and(|since| now_ms.saturating_sub(*since) >= patience_ms) {
                    orders.leave.push(machine.name.clone());
                }
            }
        }
    }
}

fn is_idle(machine: &Machine) -> bool {
    machine.is_connected && machine.nodes.iter().all(|node| node.held == 0)
}

/// Whether nodes of an allocation are to be emptied by now.
fn ends_soon(queue: &Queue, allocation: &Allocation, now_ms: u64) -> bool {
    let drain_ms = queue.spec.drain_before_s.saturating_mul(1_000);
    allocation.end_ms.is_some_and(|end| end.saturating_sub(drain_ms) <= now_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::spec;
    use crate::queues::{MachineNode, Queues, new_allocation};

    fn machine(name: &str, held: u32) -> Machine {
        let (gpus, gpu_type, is_draining) = (2, "a100".to_owned(), false);
        let node = MachineNode { name: name.to_owned(), gpus, gpu_type, held, is_draining };
        Machine { name: name.to_owned(), is_connected: true, nodes: vec![node] }
    }

    #[test]
    fn a_node_leaves_when_it_is_idle_for_long_and_is_emptied_before_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let queues = Queues::default();
        queues.open(folder.path(), folder.path()).unwrap();
        let (job, end_ms) = (Some(7), Some(2_000_000));
        let allocation =
            || crate::Allocation { stage: Stage::Runs, job, end_ms, ..new_allocation(1, "x".to_owned(), 0) };
        let orders = |now_ms: u64, held: u32| {
            let done = queues.with(|opened| {
                if opened.journal.queues().is_empty() {
                    let queue = crate::Queue { allocations: vec![allocation()], ..Queue::new(spec("a")) };
                    opened.journal.change(|queues| queues.push(queue))?;
                }
                let mut orders = Orders::default();
                unneeded(opened, now_ms, &[machine("a-7-0", held), machine("b-7-0", 0)], &mut orders);
                Ok(orders)
            });
            done.unwrap()
        };
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(orders(0, 0), Orders::default());
        assert_eq!(orders(500_000, 1), Orders::default());
        assert_eq!(orders(600_000, 0), Orders::default());
        assert_eq!(orders(1_199_000, 0), Orders::default());
        assert_eq!(orders(1_200_000, 0), Orders { leave: names(&["a-7-0"]), drain: Vec::new() });
        assert_eq!(orders(1_400_000, 2), Orders { leave: Vec::new(), drain: names(&["a-7-0"]) });
        assert_eq!(orders(1_410_000, 0).leave, ["a-7-0"]);
    }
}
