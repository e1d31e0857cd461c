use pollux_backend::ReplicaId;
use pollux_engine::{Revision, StopReason};
use pollux_store::GroupRow;

/// Replicas of the past whose logs are kept while their job lives.
const PAST_MAX: usize = 64;

/// The replicas of a job that train together, in the order of their ranks.
///
/// Every change of the members is a generation, 1, 2, 3, ..., which workers are told. A revision of the engine that
/// both removes and adds has two: the survivors alone, who go on at once, then all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    /// Of the newest membership.
    pub(crate) generation: u64,
    /// The engine's revision that it belongs to, or is on its way to.
    pub(crate) revision: Revision,
    /// The oldest membership whose words count, with its revision.
    heard: (u64, Revision),
    pub(crate) members: Vec<ReplicaId>,
    /// Host and port, once its leader has told.
    pub(crate) rendezvous: Option<(String, u16)>,
    /// Whether members of this revision are still to be launched.
    pub(crate) awaits_additions: bool,
    /// Whether members left since the newest membership was announced.
    pub(crate) shrunk: bool,
    /// Whether all of it is to save and leave.
    pub(crate) stopping: bool,
    /// Who led it when it was told to leave, though it could have gone on.
    pub(crate) last_leader: Option<ReplicaId>,
    /// Replicas that are gone, the newest last.
    pub(crate) past: Vec<ReplicaId>,
}

/// What it means that a membership says it trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Another membership is current.
    Stale,
    /// More are to come: nobody waits for this one.
    Partial,
    /// That it is known already.
    Known,
    /// That this revision is complete.
    Complete(Revision),
}

impl Group {
    /// Starts afresh, for a revision of which nothing was there before.
    pub(super) fn begin(&mut self, revision: Revision) {
        self.revision = revision;
        self.heard = (self.generation + 1, revision);
        self.members.clear();
        self.stopping = false;
        self.last_leader = None;
    }

    /// All of it is to save and leave.
    pub(super) fn stop(&mut self, why: StopReason) {
        self.stopping = true;
        self.last_leader = match why {
            StopReason::Paused | StopReason::Preempted | StopReason::Moved | StopReason::NodeEnds => {
                self.members.first().copied()
            }
            StopReason::Resized
            | StopReason::TimeLimit
            | StopReason::Cancelled
            | StopReason::Succeeded
            | StopReason::Failed
            | StopReason::NodeLost => None,
        };
    }

    pub(super) fn announce(&mut self) {
        self.generation += 1;
        self.rendezvous = None;
        self.shrunk = false;
    }

    pub(super) fn settle(&mut self) {
        self.heard = (self.generation, self.revision);
    }

    /// Whether it was started as a whole and nothing has changed since.
    pub(crate) fn is_fresh(&self) -> bool {
        self.heard.0 == self.generation && self.heard.1 == self.revision && !self.stopping
    }

    /// Notes a replica that is gone; returns one whose logs are too old to be kept.
    pub(super) fn archive(&mut self, id: ReplicaId) -> Option<ReplicaId> {
        self.past.push(id);
        (self.past.len() > PAST_MAX).then(|| self.past.remove(0))
    }

    /// The engine's revision that the words of a membership belong to, if they count.
    pub(crate) fn revision_of(&self, generation: u64) -> Option<Revision> {
        let (heard, revision) = self.heard;
        if generation == heard {
            return Some(revision);
        }
        (heard..=self.generation).contains(&generation).then_some(self.revision)
    }

    /// What it means that a membership says it trains, while the engine waits for that or, if `settled`, does not.
    pub(crate) fn readiness(&self, generation: u64, settled: bool) -> Readiness {
        if generation != self.generation || self.stopping {
            return Readiness::Stale;
        }
        if self.awaits_additions {
            return Readiness::Partial;
        }
        if settled { Readiness::Known } else { Readiness::Complete(self.revision) }
    }
}

impl From<&Group> for GroupRow {
    fn from(group: &Group) -> Self {
        let numbers = |replicas: &[ReplicaId]| replicas.iter().map(|replica| replica.0).collect();
        Self {
            generation: group.generation,
            revision: group.revision,
            heard: group.heard,
            members: numbers(&group.members),
            rendezvous: group.rendezvous.clone(),
            awaits_additions: group.awaits_additions,
            shrunk: group.shrunk,
            stopping: group.stopping,
            last_leader: group.last_leader.map(|leader| leader.0),
            past: numbers(&group.past),
        }
    }
}

impl From<GroupRow> for Group {
    fn from(row: GroupRow) -> Self {
        let replicas = |numbers: Vec<u64>| numbers.into_iter().map(ReplicaId).collect();
        Self {
            generation: row.generation,
            revision: row.revision,
            heard: row.heard,
            members: replicas(row.members),
            rendezvous: row.rendezvous,
            awaits_additions: row.awaits_additions,
            shrunk: row.shrunk,
            stopping: row.stopping,
            last_leader: row.last_leader.map(ReplicaId),
            past: replicas(row.past),
        }
    }
}
