//! What is known of replicas that have not ended.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use pollux_backend::{ReplicaId, ReplicaOrder};

use crate::folder::{Folder, Record};
use crate::nodes::Node;

/// A replica that has not ended.
pub(crate) struct Live {
    pub(crate) hold: Hold,
    pub(crate) stage: Stage,
}

/// What a replica takes of this machine until it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nothing: all of it is gone.
    Nothing,
    /// This.
    Known { node: String, slots: Vec<u32>, cpus: u32, memory: u64 },
    /// Its order cannot be read. It may take anything.
    Unknown,
}

impl Hold {
    pub(crate) fn new(record: &Record) -> Self {
        Self::Known {
            node: record.order.node.clone(),
            slots: record.slots.clone(),
            cpus: record.order.cpus.unwrap_or(0),
            memory: record.order.memory.unwrap_or(0),
        }
    }

    /// What a replica of an earlier daemon takes, which only its folder knows.
    pub(crate) fn read(folder: &Folder) -> Self {
        folder.order().map_or(Self::Unknown, |record| Self::new(&record))
    }

    pub(crate) fn slots(&self) -> &[u32] {
        match self {
            Self::Known { slots, .. } => slots,
            Self::Nothing | Self::Unknown => &[],
        }
    }

    /// CPUs and memory of a node that it takes.
    pub(crate) fn of_node(&self, name: &str) -> (u64, u64) {
        match self {
            Self::Known { node, cpus, memory, .. } if node == name => (u64::from(*cpus), *memory),
            Self::Known { .. } | Self::Nothing | Self::Unknown => (0, 0),
        }
    }
}

/// How far a replica has come.
pub(crate) enum Stage {
    /// A daemon before this one left it behind, and the system does not let us see who watches over it.
    Unseen {
        /// When the patience of the stops that were asked for is over.
        kill_at: Option<Instant>,
    },
    /// Its shim watches over it.
    Shimmed {
        shim: OwnedFd,
        /// When the patience of the stops that were asked for is over.
        kill_at: Option<Instant>,
        /// The watch on its folder until its worker runs.
        starting: Option<i32>,
    },
    /// Its shim is gone without a word; what is left of its worker has been killed and is waited for.
    Lost { leftovers: Vec<OwnedFd> },
}

impl Stage {
    /// What can be read from when it is over.
    pub(crate) fn handles(&self) -> &[OwnedFd] {
        match self {
            Self::Unseen { .. } => &[],
            Self::Shimmed { shim, .. } => std::slice::from_ref(shim),
            Self::Lost { leftovers } => leftovers,
        }
    }
}

/// Why nothing can be given away while a replica's hold is not known.
pub(crate) fn unknown_hold(replica: ReplicaId) -> String {
    format!("{replica} runs, and its order.json cannot be read: nobody knows which slots are free")
}

/// Free slots of its node, or those of its host, if there are CPUs and memory for it, too.
pub(crate) fn slots_for(
    live: &BTreeMap<ReplicaId, Live>,
    node: &Node,
    order: &ReplicaOrder,
) -> Result<Vec<u32>, String> {
    if let Some((&replica, _)) = live.iter().find(|(_, live)| live.hold == Hold::Unknown) {
        return Err(unknown_hold(replica));
    }
    let (cpus, memory) = live
        .values()
        .map(|live| live.hold.of_node(&node.name))
        .fold((0, 0), |(all_cpus, all_memory): (u64, u64), (cpus, memory)| {
            (all_cpus + cpus, all_memory.saturating_add(memory))
        });
    let free = u64::from(node.machine.cpus).saturating_sub(cpus);
    if let Some(wanted) = order.cpus.filter(|&wanted| u64::from(wanted) > free) {
        return Err(format!("{} has {free} free CPUs of {wanted}", node.name));
    }
    let free = node.machine.memory.saturating_sub(memory);
    if let Some(wanted) = order.memory.filter(|&wanted| wanted > free) {
        return Err(format!("{} has {free} free bytes of memory of {wanted}", node.name));
    }
    if let Some(host) = order.shares_with {
        let host_slots = live.get(&host).map(|live| live.hold.slots().to_vec());
        return host_slots.ok_or_else(|| format!("{host}, whose slot it was to share, is gone"));
    }
    let is_free = |slot: &&u32| !live.values().any(|live| live.hold.slots().contains(slot));
    let wanted = order.gpus as usize;
    let free: Vec<u32> = node.slots.iter().filter(is_free).take(wanted).copied().collect();
    if free.len() < wanted {
        return Err(format!("{} has {} free slots of {wanted}", node.name, free.len()));
    }
    Ok(free)
}
