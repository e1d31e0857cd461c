use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::Caller;

/// So many callers are remembered.
const CALLERS_MAX: usize = 10_000;

/// Whose requests are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// With a token that is known.
    Caller(Caller),
    /// Without.
    Peer(IpAddr),
}

impl Source {
    /// Requests per second for long, and at once. Tokens have what a busy cluster never needs, strangers what a probe
    /// of its health does.
    const fn allowance(&self) -> (f64, f64) {
        match self {
            Self::Caller(_) => (2_000.0, 4_000.0),
            Self::Peer(_) => (20.0, 200.0),
        }
    }
}

/// How fast each source asks.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    buckets: Mutex<BTreeMap<Source, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn left(&self, now: Instant, (per_s, burst): (f64, f64)) -> f64 {
        (self.left + now.saturating_duration_since(self.at).as_secs_f64() * per_s).min(burst)
    }
}

impl Rates {
    /// Counts a request, or says when the next one may come.
    pub(crate) fn count(&self, source: Source, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock().expect("nobody panics with it");
        if buckets.len() >= CALLERS_MAX && !buckets.contains_key(&source) {
            buckets.retain(|of, bucket| bucket.left(now, of.allowance()) < of.allowance().1);
            if buckets.len() >= CALLERS_MAX {
                return Err(Duration::from_secs(1));
            }
        }
        let (per_s, burst) = source.allowance();
        let bucket = buckets.entry(source).or_insert(Bucket { left: burst, at: now });
        let left = bucket.left(now, (per_s, burst));
        if left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - left) / per_s));
        }
        *bucket = Bucket { left: left - 1.0, at: now };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_the_rate_and_nobody_else_is_held_up() {
        let (rates, now) = (Rates::default(), Instant::now());
        let peer = |last| Source::Peer(IpAddr::from([192, 0, 2, last]));
        let passed = |source: Source, at| (0..1_000).filter(|_| rates.count(source.clone(), at).is_ok()).count();
        assert_eq!(passed(peer(1), now), 200);
        assert_eq!(rates.count(peer(1), now), Err(Duration::from_millis(50)));
        assert_eq!(passed(peer(2), now), 200);
        assert_eq!(passed(peer(1), now + Duration::from_secs(1)), 20);
        assert_eq!(passed(Source::Caller(Caller::User("local".to_owned())), now), 1_000);
    }

    #[test]
    fn many_sources_are_forgotten_when_they_are_quiet_and_bounded_when_not() {
        let (rates, now) = (Rates::default(), Instant::now());
        let peer = |number: u32| Source::Peer(IpAddr::from(number.to_be_bytes()));
        let known = || rates.buckets.lock().unwrap().len();
        let passed = |at| (0..20_000).filter(|number| rates.count(peer(*number), at).is_ok()).count();
        assert_eq!((passed(now), known()), (CALLERS_MAX, CALLERS_MAX));
        assert!(rates.count(peer(30_000), now + Duration::from_secs(60)).is_ok());
        assert_eq!(known(), 1);
    }
}
