use pollux_policy::Timestamp;

/// A group that fails sooner after its launch has not shown that it can train.
const TRIAL_S: f64 = 60.0;
/// Seconds for which a job whose first group failed at once is given only what nobody uses; twice as long after each
/// further failure.
const YIELD_FIRST_S: f64 = 600.0;
const YIELD_MAX_S: f64 = 14_400.0;

/// What decides how a job that waits, or waited, stands against others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartHistory {
    /// Since when it could have run: its submission, or the end of the last job that it waited for.
    pub eligible_since: Timestamp,
    /// When it last began to wait for GPUs.
    pub queued_since: Timestamp,
    /// When its group was last started from nothing.
    pub launched: Option<Timestamp>,
    /// Failures in a row that came before it had trained for a while.
    pub failed_starts: u32,
    /// After such a failure: until when it is given only what nobody uses.
    pub yields_until: Timestamp,
}

impl StartHistory {
    /// Of a job that waits since a moment and has never failed.
    pub const fn since(moment: Timestamp) -> Self {
        Self {
            eligible_since: moment,
            queued_since: moment,
            launched: None,
            failed_starts: 0,
            yields_until: Timestamp(0),
        }
    }

    /// Nothing but GPUs is waited for any more.
    pub(crate) const fn become_eligible(&mut self, now: Timestamp) {
        (self.eligible_since, self.queued_since) = (now, now);
    }

    /// Whether its group was launched long enough ago to have shown that it can train.
    pub(crate) fn is_proven(&self, now: Timestamp) -> bool {
        self.launched.is_some_and(|since| now.since_s(since) >= TRIAL_S)
    }

    /// A group has failed at once: the next one is not worth driving others out for.
    pub(crate) fn note_failed_start(&mut self, now: Timestamp) {
        let doublings = i32::try_from(self.failed_starts).unwrap_or(i32::MAX);
        self.failed_starts = self.failed_starts.saturating_add(1);
        self.yields_until = now.after_s((YIELD_FIRST_S * 2f64.powi(doublings)).min(YIELD_MAX_S));
    }

    /// Earlier failures do not count any more.
    pub(crate) const fn forgive(&mut self) {
        (self.failed_starts, self.yields_until) = (0, Timestamp(0));
    }
}
