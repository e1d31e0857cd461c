use pollux_backend::ReplicaId;
use pollux_engine::{Generation, StopReason};
use serde::{Deserialize, Serialize};

/// Replicas of the past whose logs are kept while their job lives.
const PAST_MAX: usize = 64;

/// The replicas of a job that train together, in the order of their ranks.
///
/// Memberships are numbered 1, 2, 3, ...; workers know the number as their generation. A generation of the engine that
/// both removes and adds has two: the survivors alone, who go on at once, then all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    /// Of the newest membership.
    pub(crate) number: u64,
    /// The engine's generation that it belongs to, or is on its way to.
    pub(crate) generation: Generation,
    /// The oldest membership whose words count, with its generation.
    heard: (u64, Generation),
    pub(crate) members: Vec<ReplicaId>,
    /// Host and port.
    pub(crate) meeting: (String, u16),
    /// Whether members of this generation are still to be launched.
    pub(crate) awaits_additions: bool,
    /// Whether members left since the newest membership was announced.
    pub(crate) shrunk: bool,
    /// Whether all of it is to save and leave.
    pub(crate) stopping: bool,
    /// Who led it when it was told to leave, though it could have gone on.
    #[serde(default)]
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
    /// That this generation is complete.
    Complete(Generation),
}

impl Group {
    /// Starts afresh, for a generation of which nothing was there before.
    pub(super) fn begin(&mut self, generation: Generation) {
        self.generation = generation;
        self.heard = (self.number + 1, generation);
        self.members.clear();
        self.stopping = false;
        self.last_leader = None;
    }

    /// All of it is to save and leave.
    pub(super) fn stop(&mut self, why: StopReason) {
        self.stopping = true;
        self.last_leader = match why {
            StopReason::Paused | StopReason::Preempted | StopReason::Moved => self.members.first().copied(),
            StopReason::Resized
            | StopReason::Cancelled
            | StopReason::Succeeded
            | StopReason::Failed
            | StopReason::NodeLost => None,
        };
    }

    pub(super) fn announce(&mut self, meeting: (String, u16)) {
        self.number += 1;
        self.meeting = meeting;
        self.shrunk = false;
    }

    pub(super) fn settle(&mut self) {
        self.heard = (self.number, self.generation);
    }

    /// Whether it was started as a whole and nothing has changed since.
    pub(super) fn is_fresh(&self) -> bool {
        self.heard.0 == self.number && self.heard.1 == self.generation && !self.stopping
    }

    /// Notes a replica that is gone; returns one whose logs are too old to be kept.
    pub(super) fn bury(&mut self, id: ReplicaId) -> Option<ReplicaId> {
        self.past.push(id);
        (self.past.len() > PAST_MAX).then(|| self.past.remove(0))
    }

    /// The engine's generation that the words of a membership belong to, if they count.
    pub(crate) fn generation_of(&self, number: u64) -> Option<Generation> {
        let (heard, generation) = self.heard;
        if number == heard {
            return Some(generation);
        }
        (heard..=self.number).contains(&number).then_some(self.generation)
    }

    /// What it means that a membership says it trains, while the engine waits for that or, if `settled`, does not.
    pub(crate) fn readiness(&self, number: u64, settled: bool) -> Readiness {
        if number != self.number || self.stopping {
            return Readiness::Stale;
        }
        if self.awaits_additions {
            return Readiness::Partial;
        }
        if settled { Readiness::Known } else { Readiness::Complete(self.generation) }
    }
}
