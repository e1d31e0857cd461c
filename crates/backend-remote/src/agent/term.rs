use std::time::Duration;

use tokio::time::Instant;

use crate::protocol::{Ending, FromNode};

/// What still runs is told to end so long before the machine is gone.
const LAST_GRACE: Duration = Duration::from_secs(30);
/// Between two wishes to leave: the first may have come too early.
const WISH_INTERVAL: Duration = Duration::from_secs(4);

/// How long a machine works for its scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Until the machine is gone.
    pub ends_in: Option<Duration>,
    /// So long before that it is to be empty.
    pub drain_before: Duration,
    /// It leaves once nothing has run there for so long.
    pub idle_timeout: Option<Duration>,
}

/// When a machine is to be empty, ends and leaves.
#[derive(Debug)]
pub(super) struct Term {
    drains_at: Option<Instant>,
    ends_at: Option<Instant>,
    idle_timeout: Option<Duration>,
    idle_since: Instant,
    asked: Option<Instant>,
}

impl Term {
    pub(super) fn begin(lifetime: Lifetime, now: Instant) -> Self {
        // One that is beyond reckoning is none.
        let ends_at = lifetime.ends_in.and_then(|ends_in| now.checked_add(ends_in));
        let drains_at = ends_at.map(|at| at.checked_sub(lifetime.drain_before).map_or(now, |at| at.max(now)));
        Self { drains_at, ends_at, idle_timeout: lifetime.idle_timeout, idle_since: now, asked: None }
    }

    /// It is to be empty from now on.
    pub(super) fn drain(&mut self, now: Instant) {
        self.drains_at = Some(self.drains_at.map_or(now, |at| at.min(now)));
    }

    /// What the scheduler is told of it.
    pub(super) fn ending(&self, now: Instant) -> Option<Ending> {
        let until = |at: Instant| u64::try_from(at.saturating_duration_since(now).as_millis()).unwrap_or(u64::MAX);
        Some(Ending { drains_in_ms: until(self.drains_at?), ends_in_ms: self.ends_at.map(until) })
    }

    /// Whether it has asked to leave, so that being told to is what it wanted.
    pub(super) const fn has_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// What it asks of the scheduler now.
    pub(super) fn wish(&mut self, is_idle: bool, now: Instant) -> Option<FromNode> {
        if !is_idle {
            self.idle_since = now;
        }
        let drains = self.drains_at.is_some_and(|at| at <= now);
        let is_over = drains && self.ends_at.is_some_and(|at| at <= now + LAST_GRACE);
        let idle = now.duration_since(self.idle_since);
        let is_unused = is_idle && (drains || self.idle_timeout.is_some_and(|timeout| idle >= timeout));
        let is_soon = self.asked.is_some_and(|at| now.duration_since(at) < WISH_INTERVAL);
        if is_soon || !(is_over || is_unused) {
            return None;
        }
        self.asked = Some(now);
        Some(FromNode::AsksToLeave { at_once: is_over })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_machine_is_to_be_empty_some_time_before_it_ends_and_leaves_as_soon_as_it_is() {
        let start = Instant::now();
        let lifetime = Lifetime { ends_in: Some(s(1_000)), drain_before: s(300), idle_timeout: None };
        let mut term = Term::begin(lifetime, start);
        assert_eq!(term.ending(start + s(100)), Some(Ending { drains_in_ms: 600_000, ends_in_ms: Some(900_000) }));
        assert_eq!(term.wish(true, start + s(699)), None);
        assert_eq!(term.wish(false, start + s(700)), None);
        assert_eq!(term.wish(true, start + s(701)), Some(FromNode::AsksToLeave { at_once: false }));
        assert_eq!(term.wish(true, start + s(702)), None, "it has just asked");
        assert_eq!(term.wish(false, start + s(970)), Some(FromNode::AsksToLeave { at_once: true }));
    }

    #[test]
    fn a_short_life_drains_from_its_beginning_and_ends_nothing_early() {
        let start = Instant::now();
        let lifetime = Lifetime { ends_in: Some(s(60)), drain_before: s(300), idle_timeout: None };
        assert_eq!(
            Term::begin(lifetime, start).ending(start),
            Some(Ending { drains_in_ms: 0, ends_in_ms: Some(60_000) })
        );
        let lifetime = Lifetime { ends_in: Some(s(20)), drain_before: s(5), idle_timeout: None };
        let mut term = Term::begin(lifetime, start);
        assert_eq!(term.wish(false, start + s(14)), None, "it is not to be empty yet");
        assert_eq!(term.wish(false, start + s(15)), Some(FromNode::AsksToLeave { at_once: true }));
    }

    #[test]
    fn an_idle_machine_leaves_and_one_that_was_used_meanwhile_waits_again() {
        let start = Instant::now();
        let mut term = Term::begin(Lifetime { idle_timeout: Some(s(60)), ..Lifetime::default() }, start);
        assert_eq!(term.ending(start), None);
        assert_eq!(term.wish(true, start + s(59)), None);
        assert_eq!(term.wish(false, start + s(60)), None);
        assert_eq!(term.wish(true, start + s(119)), None);
        assert_eq!(term.wish(true, start + s(120)), Some(FromNode::AsksToLeave { at_once: false }));
    }

    #[test]
    fn a_machine_that_is_told_to_drain_leaves_once_it_is_empty() {
        let start = Instant::now();
        let mut term = Term::begin(Lifetime::default(), start);
        term.drain(start + s(5));
        assert_eq!(term.ending(start + s(6)), Some(Ending { drains_in_ms: 0, ends_in_ms: None }));
        assert_eq!(term.wish(false, start + s(6)), None);
        assert_eq!(term.wish(true, start + s(7)), Some(FromNode::AsksToLeave { at_once: false }));
    }
}
