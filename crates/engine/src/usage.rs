use pollux_policy::Timestamp;

/// Weight of the newest measurement of a restart's cost.
const RESTART_COST_WEIGHT: f64 = 0.5;

/// What a cluster remembers of a job's past. A guest holds the GPUs it is on as much as their owner does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JobUsage {
    /// When it was submitted.
    pub submitted: Timestamp,
    /// When its first group was launched.
    pub first_started: Option<Timestamp>,
    /// When it succeeded, failed or was cancelled.
    pub ended: Option<Timestamp>,
    /// Groups launched or resized after the first.
    pub restarts: u32,
    /// Retries after failures.
    pub retries: u32,
    /// Seconds that a change of its GPUs costs, as measured on the job itself.
    pub restart_cost_s: Option<f64>,
    /// Whether that is what pauses of its training took, not launches of its processes.
    pub is_pause_known: bool,
    /// Milliseconds times GPUs held. Sums of whole milliseconds do not depend on how often they are brought up to date.
    pub gpu_ms: u64,
    /// Milliseconds in which it held any GPU.
    pub executed_ms: u64,
    /// Milliseconds in which it waited for GPUs.
    pub queued_ms: u64,
    /// The moment up to which these sums count.
    pub accrued_until: Timestamp,
}

impl JobUsage {
    /// Of a job that was just submitted.
    pub const fn new(submitted: Timestamp) -> Self {
        Self {
            submitted,
            first_started: None,
            ended: None,
            restarts: 0,
            retries: 0,
            restart_cost_s: None,
            is_pause_known: false,
            gpu_ms: 0,
            executed_ms: 0,
            queued_ms: 0,
            accrued_until: submitted,
        }
    }

    /// GPU-seconds held, to the moment the usage were last brought up to date.
    pub fn attained_gpu_s(&self) -> f64 {
        self.gpu_ms as f64 / 1000.0
    }

    /// Seconds in which it held any GPU.
    pub fn executed_s(&self) -> f64 {
        self.executed_ms as f64 / 1000.0
    }

    /// Seconds in which it waited for GPUs, retries included.
    pub fn queued_s(&self) -> f64 {
        self.queued_ms as f64 / 1000.0
    }

    /// Counts the time since the last call, in which nothing changed.
    pub(crate) fn accrue(&mut self, now: Timestamp, gpus_held: u32, queued: bool) {
        let elapsed_ms = now.0.saturating_sub(self.accrued_until.0);
        self.accrued_until = self.accrued_until.max(now);
        self.gpu_ms = self.gpu_ms.saturating_add(elapsed_ms.saturating_mul(u64::from(gpus_held)));
        if gpus_held > 0 {
            self.executed_ms = self.executed_ms.saturating_add(elapsed_ms);
        }
        if queued {
            self.queued_ms = self.queued_ms.saturating_add(elapsed_ms);
        }
    }

    /// A whole group was launched.
    pub(crate) fn started(&mut self, now: Timestamp) {
        match self.first_started {
            None => self.first_started = Some(now),
            Some(_) => self.restarted(),
        }
    }

    pub(crate) fn restarted(&mut self) {
        self.restarts = self.restarts.saturating_add(1);
    }

    /// A group was launched. Who has been seen to change in place will not be launched for the next change.
    pub(crate) fn measure_launch(&mut self, cost_s: f64) {
        if !self.is_pause_known {
            self.measure_restart(cost_s);
        }
    }

    /// A group went on after a pause that it measured itself.
    pub(crate) fn measure_pause(&mut self, cost_s: f64) {
        if !self.is_pause_known {
            self.restart_cost_s = None;
            self.is_pause_known = true;
        }
        self.measure_restart(cost_s);
    }

    /// A change is over that cost this.
    pub(crate) fn measure_restart(&mut self, cost_s: f64) {
        let smoothed = |before: f64| before + RESTART_COST_WEIGHT * (cost_s - before);
        self.restart_cost_s = Some(self.restart_cost_s.map_or(cost_s, smoothed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_count_for_the_cost_of_a_change_until_a_pause_was_measured() {
        let mut usage = JobUsage::new(Timestamp(0));
        usage.measure_launch(20.0);
        usage.measure_launch(10.0);
        assert_eq!(usage.restart_cost_s, Some(15.0));
        usage.measure_pause(0.5);
        assert_eq!(usage.restart_cost_s, Some(0.5));
        usage.measure_launch(30.0);
        usage.measure_pause(1.5);
        assert_eq!(usage.restart_cost_s, Some(1.0));
    }
}
