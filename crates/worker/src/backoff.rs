use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
/// A scheduler that is back is noticed after this long at the latest.
pub(crate) const LONGEST: Duration = Duration::from_secs(5);

/// How long to wait after so many failures in a row: doubled each time, up to a bound. A worker talks to its own
/// scheduler only, so nothing is gained by spreading the retries.
pub(crate) fn after_failures(failures: u32) -> Duration {
    FIRST.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_bound() {
        let waits: Vec<_> = (1..=8).map(|failures| after_failures(failures).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(after_failures(u32::MAX), LONGEST);
    }
}
