use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};

use crate::Caller;

/// So many of a kind are remembered, beyond which those who have been quiet are forgotten.
const SOURCES_MAX: usize = 10_000;

/// Requests per second for long, and at once. Tokens have what a busy cluster never needs, strangers what a probe of
/// its health does. All workers of a job have one token, and ask at once when their group has changed.
const CALLER: (u32, u32) = (5_000, 20_000);
const STRANGER: (u32, u32) = (20, 200);

/// Whose requests are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// With a token that is known.
    Caller(Caller),
    /// Without.
    Peer(IpAddr),
}

type Limiter<K, C> = RateLimiter<K, HashMapStateStore<K>, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// How fast each source asks.
#[derive(Debug)]
pub(crate) struct Rates<C: Clock = MonotonicClock> {
    callers: Limiter<Caller, C>,
    strangers: Limiter<IpAddr, C>,
    clock: C,
}

impl Default for Rates {
    fn default() -> Self {
        Self::new(MonotonicClock)
    }
}

impl<C: Clock + Clone> Rates<C> {
    fn new(clock: C) -> Self {
        let quota = |(per_s, burst)| {
            let number = |number| NonZeroU32::new(number).expect("rates are positive");
            Quota::per_second(number(per_s)).allow_burst(number(burst))
        };
        Self {
            callers: RateLimiter::hashmap_with_clock(quota(CALLER), clock.clone()),
            strangers: RateLimiter::hashmap_with_clock(quota(STRANGER), clock.clone()),
            clock,
        }
    }

    /// Counts a request, or says when the next one may come.
    pub(crate) fn count(&self, source: Source) -> Result<(), Duration> {
        let checked = match source {
            // They are no more than there are tokens.
            Source::Caller(caller) => {
                make_room(&self.callers);
                self.callers.check_key(&caller)
            }
            Source::Peer(_) if !make_room(&self.strangers) => return Err(Duration::from_secs(1)),
            Source::Peer(peer) => self.strangers.check_key(&peer),
        };
        checked.map_err(|not_until| not_until.wait_time_from(self.clock.now()))
    }
}

/// Whether one more can be remembered.
fn make_room<K: Hash + Eq + Clone, C: Clock>(limiter: &Limiter<K, C>) -> bool {
    if limiter.len() >= SOURCES_MAX {
        limiter.retain_recent();
    }
    limiter.len() < SOURCES_MAX
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;
    use pollux_api::Role;

    use super::*;
    use crate::User;

    fn peer(number: u32) -> Source {
        Source::Peer(IpAddr::from(number.to_be_bytes()))
    }

    #[test]
    fn a_burst_passes_then_the_rate_and_nobody_else_is_held_up() {
        let clock = FakeRelativeClock::default();
        let rates = Rates::new(clock.clone());
        let passed = |source: Source| (0..1_000).filter(|_| rates.count(source.clone()).is_ok()).count();
        assert_eq!(passed(peer(1)), 200);
        assert_eq!(rates.count(peer(1)), Err(Duration::from_millis(50)));
        assert_eq!(passed(peer(2)), 200);
        clock.advance(Duration::from_secs(1));
        assert_eq!(passed(peer(1)), 20);
        assert_eq!(passed(Source::Caller(Caller::User(User::new("local", Role::Admin)))), 1_000);
    }

    #[test]
    fn many_sources_are_forgotten_when_they_are_quiet_and_bounded_when_not() {
        let clock = FakeRelativeClock::default();
        let rates = Rates::new(clock.clone());
        let passed = || (0..20_000).filter(|number| rates.count(peer(*number)).is_ok()).count();
        assert_eq!((passed(), rates.strangers.len()), (SOURCES_MAX, SOURCES_MAX));
        clock.advance(Duration::from_secs(60));
        assert!(rates.count(peer(30_000)).is_ok());
        assert_eq!(rates.strangers.len(), 1);
    }
}
