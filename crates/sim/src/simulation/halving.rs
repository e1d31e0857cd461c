use pollux_engine::Event;
use pollux_policy::Timestamp;

use super::run::id_of;
use super::sweep::{RungOutcome, Sweep};
use crate::SimRng;

/// Who decides which trials of a sweep go on: successive halving in rungs that end when their last trial is there.
pub(super) struct Halving {
    keep_one_in: u32,
    /// What the settings of each trial are worth.
    pub(super) qualities: Vec<f64>,
    /// Epochs that each trial has trained.
    pub(super) epochs: Vec<u32>,
    /// Epochs at which the rungs end; the last is the end of training.
    rung_ends: Vec<u32>,
    /// Trials of the current rung.
    competing: Vec<usize>,
    /// How many of them are at its end.
    arrived: usize,
    /// Rungs that are over.
    pub(super) rungs: Vec<RungOutcome>,
}

impl Halving {
    pub(super) fn new(sweep: &Sweep, epochs: u32) -> Self {
        let mut rng = SimRng::new(sweep.seed);
        let mut rung_ends = Vec::new();
        let (mut trials, mut end) = (sweep.trials, sweep.first_epochs);
        while trials > 1 && end < epochs {
            rung_ends.push(end);
            trials /= sweep.keep_one_in;
            end = end.saturating_mul(sweep.keep_one_in);
        }
        rung_ends.push(epochs);
        Self {
            keep_one_in: sweep.keep_one_in,
            qualities: (0..sweep.trials).map(|_| rng.unit()).collect(),
            epochs: vec![0; sweep.trials as usize],
            rung_ends,
            competing: (0..sweep.trials as usize).collect(),
            arrived: 0,
            rungs: Vec::new(),
        }
    }

    /// A trial has ended an epoch: what its sweep wants to happen, if anything.
    pub(super) fn end_epoch(&mut self, trial: usize, epochs: u32, now: Timestamp) -> Vec<Event> {
        self.epochs[trial] = epochs;
        let Some(&end) = self.rung_ends.get(self.rungs.len()) else { return Vec::new() };
        if epochs < end {
            return Vec::new();
        }
        self.arrived += 1;
        let is_last_rung = self.rungs.len() + 1 == self.rung_ends.len();
        let mut events = if is_last_rung { Vec::new() } else { vec![Event::Pause { job: id_of(trial) }] };
        if self.arrived == self.competing.len() {
            let trials = self.competing.len() as u32;
            self.rungs.push(RungOutcome { trials, epochs: end, finished_s: now.as_s() });
            if !is_last_rung {
                events.extend(self.promote());
            }
        }
        events
    }

    /// The best go on, the others are over.
    fn promote(&mut self) -> impl Iterator<Item = Event> {
        let mut ranked = std::mem::take(&mut self.competing);
        ranked.sort_by(|&a, &b| self.qualities[b].total_cmp(&self.qualities[a]).then(a.cmp(&b)));
        let losers = ranked.split_off((ranked.len() / self.keep_one_in as usize).max(1));
        self.competing.clone_from(&ranked);
        self.arrived = 0;
        let resumed = ranked.into_iter().map(|trial| Event::Resume { job: id_of(trial) });
        losers.into_iter().map(|trial| Event::Cancel { job: id_of(trial) }).chain(resumed)
    }
}
