//! What this machine has besides GPUs.

use std::num::NonZero;
use std::thread;

use rustix::system::sysinfo;

/// CPUs and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) cpus: u32,
    pub(crate) memory: u64,
}

impl Machine {
    /// What processes of this one may use.
    pub(crate) fn this() -> Self {
        let info = sysinfo();
        let memory = info.totalram.saturating_mul(u64::from(info.mem_unit));
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        Self { cpus: u32::try_from(cpus).unwrap_or(u32::MAX), memory }
    }

    /// The part of nodes that share the machine, by their slots: nothing is counted twice, and everybody has a CPU.
    pub(crate) fn divided(self, slots: &[usize]) -> Vec<Self> {
        let total: u64 = slots.iter().map(|&slots| slots as u64).sum();
        let (mut before, mut parts) = (0, Vec::new());
        for &slots in slots {
            let after = before + slots as u64;
            // What all up to this one have, less what all before it have.
            let part = |whole: u128| {
                let up_to = |slots: u64| whole * u128::from(slots) / u128::from(total.max(1));
                up_to(after) - up_to(before)
            };
            let cpus = u32::try_from(part(self.cpus.into())).unwrap_or(u32::MAX).max(1);
            let memory = u64::try_from(part(self.memory.into())).unwrap_or(u64::MAX);
            parts.push(Self { cpus, memory });
            before = after;
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_one_machine_share_its_cpus_and_memory_by_their_slots() {
        let machine = Machine { cpus: 10, memory: 100 };
        let parts = |slots: &[usize]| machine.divided(slots).iter().map(|it| (it.cpus, it.memory)).collect::<Vec<_>>();
        assert_eq!(parts(&[4]), [(10, 100)]);
        assert_eq!(parts(&[1, 3]), [(2, 25), (8, 75)]);
        assert_eq!(parts(&[1, 1, 1]), [(3, 33), (3, 33), (4, 34)]);
        let small = Machine { cpus: 1, memory: 8 }.divided(&[2, 2]);
        assert_eq!(small.iter().map(|it| (it.cpus, it.memory)).collect::<Vec<_>>(), [(1, 4), (1, 4)]);
        assert!(Machine::this().cpus >= 1 && Machine::this().memory > 0);
    }
}
