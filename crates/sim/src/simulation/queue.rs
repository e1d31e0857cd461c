use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pollux_engine::Revision;
use pollux_policy::Timestamp;

/// What the world does by itself, in the order in which it counts when several happen at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimEvent {
    /// A job ends an epoch, if it has not changed since.
    EpochEnds { job: usize, changes: u64 },
    /// A group trains, after so long a pause.
    GroupReady { job: usize, revision: Revision, pause_ms: u64 },
    /// The additions of a resize in place are up.
    AdditionsUp { job: usize, revision: Revision },
    /// A replica of a broken job ends.
    ReplicaFails { job: usize, revision: Revision },
    /// A user submits a job.
    Submitted { job: usize },
    /// What a line of a script says.
    Scripted { line: usize },
    /// A node fails.
    NodeFails { node: usize },
    /// A failed node is back.
    NodeReturns { node: usize },
    /// A node is gone whose time is over.
    NodeEnds { node: usize },
    /// Another node comes in its place.
    NodeFollows { node: usize },
    /// A node that was ordered is up.
    NodeArrives { order: u64 },
    /// The autoscaler looks at the cluster.
    Scales,
    /// An epoch whose true end lies a fraction of a second later: the round of that moment comes first.
    EpochEndsAfterRound { job: usize, changes: u64 },
}

/// Events by time, then by kind, then by order of arrival.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<(Timestamp, SimEvent, u64)>>,
    pushed: u64,
}

impl Queue {
    pub(super) fn push(&mut self, at: Timestamp, event: SimEvent) {
        self.pushed += 1;
        self.heap.push(Reverse((at, event, self.pushed)));
    }

    pub(super) fn peek(&self) -> Option<(Timestamp, SimEvent)> {
        self.heap.peek().map(|Reverse((at, event, _))| (*at, *event))
    }

    pub(super) fn pop(&mut self) -> Option<(Timestamp, SimEvent)> {
        self.heap.pop().map(|Reverse((at, event, _))| (at, event))
    }
}
