use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pollux_policy::Timestamp;

/// Milliseconds since 1970 when it was started, and steady from then on: whoever sets the machine's clock back or forth
/// changes nothing.
#[derive(Debug)]
pub(crate) struct Clock {
    began: Timestamp,
    since: Instant,
}

impl Clock {
    /// A clock that goes on after `last`, the latest moment that was ever recorded.
    pub(crate) fn after(last: Timestamp) -> Self {
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { began: last.max(milliseconds(elapsed)), since: Instant::now() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.began.0.saturating_add(milliseconds(self.since.elapsed()).0))
    }
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
}
