use pollux_policy::Timestamp;

use crate::EngineSettings;

/// When the policy is asked next.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    interval_ms: u64,
    gap_ms: u64,
    on_events: bool,
    times: RoundTimes,
}

/// Rounds that were and will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTimes {
    /// The last one.
    pub last: Option<Timestamp>,
    /// The next round of the timer, a multiple of the interval.
    pub timer: Timestamp,
    /// When something happened that is worth a round of its own.
    pub requested: Option<Timestamp>,
}

impl Rounds {
    pub(crate) fn new(settings: &EngineSettings, policy_wants_events: bool) -> Self {
        let milliseconds = |seconds: f64| Timestamp(0).after_s(seconds).0;
        Self {
            interval_ms: milliseconds(settings.round_interval_s),
            gap_ms: milliseconds(settings.round_gap_min_s),
            on_events: settings.replans_on_events || policy_wants_events,
            times: RoundTimes { last: None, timer: Timestamp(0), requested: None },
        }
    }

    /// When the next round is due, given that there is a job.
    pub(crate) fn due(&self) -> Timestamp {
        let wanted = self.times.requested.map_or(self.times.timer, |requested| requested.min(self.times.timer));
        self.times.last.map_or(wanted, |last| wanted.max(Timestamp(last.0.saturating_add(self.gap_ms))))
    }

    /// When the policy was asked last.
    pub(crate) const fn last(&self) -> Option<Timestamp> {
        self.times.last
    }

    pub(crate) const fn times(&self) -> RoundTimes {
        self.times
    }

    /// Carries on where another left off.
    pub(crate) const fn resume(&mut self, times: RoundTimes) {
        self.times = times;
    }

    /// The first job after a time without any: nobody counted the intervals meanwhile, or answered a request.
    pub(crate) fn wake(&mut self, now: Timestamp) {
        self.times.requested = None;
        // A round ends an interval, so that there is none at 0.
        let on_timer = Timestamp(now.0.div_ceil(self.interval_ms).max(1).saturating_mul(self.interval_ms));
        self.times.timer = if self.times.last == Some(on_timer) { self.following(on_timer) } else { on_timer };
    }

    pub(crate) fn request(&mut self, now: Timestamp) {
        if self.on_events {
            self.times.requested.get_or_insert(now);
        }
    }

    pub(crate) fn ran(&mut self, now: Timestamp) {
        self.times.last = Some(now);
        self.times.timer = self.following(now);
        self.times.requested = None;
    }

    fn following(&self, moment: Timestamp) -> Timestamp {
        Timestamp((moment.0 / self.interval_ms).saturating_add(1).saturating_mul(self.interval_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(replans_on_events: bool) -> Rounds {
        Rounds::new(&EngineSettings { replans_on_events, ..EngineSettings::default() }, false)
    }

    #[test]
    fn timer_rounds_fall_on_multiples_of_the_interval_after_a_time_without_jobs() {
        let mut rounds = rounds(false);
        let mut due = Vec::new();
        for (woken, ran) in [(0, 60), (60, 125), (1_000, 1_020), (1_020, 1_080)] {
            rounds.wake(Timestamp(woken * 1000));
            due.push(rounds.due().0 / 1000);
            rounds.ran(Timestamp(ran * 1000));
        }
        assert_eq!(due, [60, 120, 1_020, 1_080]);
    }

    #[test]
    fn requested_rounds_keep_their_distance_and_come_before_the_timer() {
        let mut rounds = rounds(true);
        rounds.ran(Timestamp(100_000));
        rounds.request(Timestamp(101_000));
        rounds.request(Timestamp(104_000));
        assert_eq!(rounds.due(), Timestamp(110_000));
        rounds.ran(Timestamp(115_000));
        assert_eq!(rounds.due(), Timestamp(125_000), "the timer's own round at 120 s keeps its distance, too");
        rounds.ran(Timestamp(125_000));
        rounds.request(Timestamp(150_000));
        assert_eq!(rounds.due(), Timestamp(150_000));
    }
}
