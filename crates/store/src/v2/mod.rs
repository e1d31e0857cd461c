//! Format 2, which is what is written today: the shapes of everything on disk, and how they become what the engine
//! knows.
//!
//! A format is never edited once it was released. Fields may be added, with a default for rows without them; fields that
//! are not known are ignored. Anything else is a format of its own, beside this one, which then becomes its past: it keeps
//! what differs, reads, and no longer writes.
//!
//! Jobs, nodes, replicas and moments are plain numbers here. Values of `pollux-model` are written as they write
//! themselves, which that crate's tests pin down.

mod history;
mod job;
mod journal;
mod report;
mod rows;
mod snapshot;
mod spec;

pub use history::{HistoryEvent, ReplicaExit};
pub(crate) use job::{Job, Leaving, Phase, Seats, SizeChange, StopReason, Summary, Usage};
pub(crate) use journal::{Event, FailureKind, Oracle, Plan, Reason, Record};
pub(crate) use report::{Progress, ReceivedReport, Report, Tuning, TypeReport};
pub(crate) use rows::Replica;
pub use rows::{GroupRow, NodeRow};
pub(crate) use snapshot::{ClusterNode, Rounds, Snapshot, SucceededJob};
pub(crate) use spec::{Flexibility, PodsPer, Spec, Work};

pub(crate) use pollux_model::GpuTypeName;
use pollux_policy::{Allocation, NodeId};

/// Nodes and replicas on them.
pub(crate) type Places = Vec<(u32, u32)>;

fn places(allocation: &Allocation) -> Places {
    allocation.iter().map(|(node, replicas)| (node.0, replicas)).collect()
}

fn allocation(places: Places) -> Allocation {
    places.into_iter().map(|(node, replicas)| (NodeId(node), replicas)).collect()
}

/// An enum of single words that is the same here and elsewhere.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident is $other:ty { $($variant:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum $name { $($variant),* }

        impl From<$other> for $name {
            fn from(word: $other) -> Self {
                match word { $(<$other>::$variant => Self::$variant),* }
            }
        }

        impl From<$name> for $other {
            fn from(word: $name) -> Self {
                match word { $($name::$variant => Self::$variant),* }
            }
        }
    };
}
use words;
