use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pollux_policy::Timestamp;

/// Milliseconds since 1970 when it was started, and steady from then on: whoever sets the machine's clock back or forth
/// changes nothing. Or whatever a test makes it show.
#[derive(Debug)]
pub(crate) enum Clock {
    Machine { began: Timestamp, since: Instant },
    Manual(ManualClock),
}

impl Clock {
    /// A clock that goes on after `last`, the latest moment that was ever recorded.
    pub(crate) fn after(last: Timestamp) -> Self {
        Self::Machine { began: last.max(wall()), since: Instant::now() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::Machine { began, since } => Timestamp(began.0.saturating_add(milliseconds(since.elapsed()).0)),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// Whether the engine may be told that a moment has come.
    pub(crate) fn has_come(&self, moment: Timestamp) -> bool {
        match self {
            Self::Machine { .. } => moment <= self.now(),
            Self::Manual(clock) => moment.0 <= clock.times.rounds_until.load(Ordering::Acquire),
        }
    }

    /// Whether time passes only when somebody says so.
    pub(crate) const fn is_manual(&self) -> bool {
        matches!(self, Self::Manual(_))
    }
}

/// A clock that a test moves. The scheduler holds its rounds only up to where they are let, so that everything of a moment
/// can be told before its round.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    times: Arc<ManualTimes>,
}

#[derive(Debug, Default)]
struct ManualTimes {
    now: AtomicU64,
    rounds_until: AtomicU64,
}

impl ManualClock {
    /// What it shows.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.times.now.load(Ordering::Acquire))
    }

    /// Makes it show a moment, never an earlier one. Whoever waits for it finds out with the next message.
    pub fn set(&self, now: Timestamp) {
        self.times.now.fetch_max(now.0, Ordering::AcqRel);
    }

    /// Lets everything happen that is due by now.
    pub fn let_rounds(&self) {
        self.times.rounds_until.store(self.now().0, Ordering::Release);
    }
}

/// What the machine's clock shows now: for what ends at a moment that people were told, such as tokens.
pub(crate) fn wall() -> Timestamp {
    milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// As the engine counts.
pub(crate) fn milliseconds(duration: Duration) -> Timestamp {
    Timestamp(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_never_shows_less_than_what_was_recorded() {
        let future = Timestamp(9_000_000_000_000);
        assert!(Clock::after(future).now() >= future);
        let machine = milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
        assert!(Clock::after(Timestamp(0)).now() >= machine);
    }

    #[test]
    fn a_manual_clock_goes_forward_and_lets_rounds_only_when_told() {
        let times = ManualClock::default();
        let clock = Clock::Manual(times.clone());
        times.set(Timestamp(5_000));
        times.set(Timestamp(4_000));
        assert_eq!((clock.now(), clock.has_come(Timestamp(5_000))), (Timestamp(5_000), false));
        times.let_rounds();
        assert!(clock.has_come(Timestamp(5_000)) && !clock.has_come(Timestamp(5_001)));
    }
}
