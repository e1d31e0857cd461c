use std::io::Write;
use std::time::{Duration, Instant};

use pollux_agent::{Placement, StepObservation, Tuning};
use pollux_model::BatchMode;

use crate::args::{GoalKind, Settings};
use crate::audit::Audit;
use crate::brain::{Brain, FinishedEpoch};
use crate::checkpoint::Checkpoints;
use crate::error::TrainerError;
use crate::group::Group;
use crate::membership::{Membership, Terms};
use crate::samples::Tally;
use crate::share::Deal;
use crate::state::{BrainState, Replica};
use crate::step::{Next, StepDecision, Total};

/// How often the scheduler hears how things are.
const REPORT_EVERY: Duration = Duration::from_secs(2);
/// A rate over less than this says little.
const RATE_MIN: Duration = Duration::from_millis(500);

/// What rank 0 does besides training: it concludes steps, counts samples, saves, and talks.
pub(crate) struct Coordinator {
    brain: Brain,
    checkpoints: Option<Checkpoints>,
    audit: Option<Audit>,
    saved: Instant,
    rate: Rate,
    epoch_rate: Rate,
    reported: Option<Instant>,
    tuning_changed: bool,
    /// The generation that has come together and what that cost, to be told once it has trained a step.
    announcement: Option<(u64, Option<f64>)>,
    /// Mean over the last epoch that ended.
    finished_loss: f64,
    learning_rate_factor: f64,
}

impl Coordinator {
    /// Takes a training up at the state it is in.
    pub(crate) fn open(settings: &Settings, state: Option<BrainState>) -> Result<Self, TrainerError> {
        let brain = match state {
            Some(state) => Brain::restore(settings.brain.clone(), state)?,
            None => Brain::new(settings.brain.clone()),
        };
        Ok(Self {
            rate: Rate::new(brain.samples()),
            epoch_rate: Rate::new(brain.samples()),
            brain,
            checkpoints: settings.checkpoint_dir.as_deref().map(Checkpoints::open).transpose()?,
            audit: settings.audit.clone().map(Audit::new),
            saved: Instant::now(),
            reported: None,
            tuning_changed: false,
            announcement: None,
            finished_loss: 0.0,
            learning_rate_factor: 1.0,
        })
    }

    /// Makes the audit agree with a state that was loaded.
    pub(crate) fn keep_audit(&self, epochs: u32) -> Result<(), TrainerError> {
        self.audit.as_ref().map_or(Ok(()), |audit| audit.keep(epochs))
    }

    pub(crate) fn brain_state(&self) -> BrainState {
        self.brain.state()
    }

    pub(crate) fn resize(&mut self, group: &Group, terms: Terms) -> Result<Tuning, TrainerError> {
        self.tuning_changed = true;
        self.brain.set_batch_mode(terms.batch);
        Ok(self.brain.resize(Placement { shape: group.shape(), gpu_type: terms.gpu_type })?)
    }

    /// Who chooses the batch from now on.
    pub(crate) const fn set_batch_mode(&mut self, mode: BatchMode) {
        self.brain.set_batch_mode(mode);
    }

    /// Whether the training has reached its goal, seen from between two epochs.
    pub(crate) fn is_done(&mut self, settings: &Settings, epoch: u32) -> bool {
        match settings.until {
            GoalKind::Passes => epoch >= settings.epochs,
            GoalKind::Progress => {
                let Settings { recipe, epochs, .. } = settings;
                let target = f64::from(*epochs) * f64::from(recipe.samples) / f64::from(recipe.batch_size);
                self.brain.report(None).progress.baseline_steps >= target
            }
        }
    }

    /// Turns what everybody contributed into what everybody does. `gradient` is the mean, `next` what the group is to do
    /// if the training is not done.
    pub(crate) fn conclude(
        &mut self,
        settings: &Settings,
        replica: &Replica,
        deal: &Deal,
        total: &Total,
        gradient: &[f32],
        next: Next,
    ) -> Result<StepDecision, TrainerError> {
        self.brain.learn(deal, total, gradient, replica.optimiser.preconditioner());
        // This step's batch decides its learning rate; only then another may be chosen.
        self.learning_rate_factor = self.brain.learning_rate_factor()?;
        let finite = gradient.iter().all(|value| value.is_finite());
        let epoch_ends = deal.cursor + deal.samples() == deal.end;
        let tuning = if epoch_ends {
            let (finished, tuning) = self.brain.end_epoch()?;
            self.close_epoch(settings, replica.position.epoch, finished)?;
            tuning
        } else {
            self.brain.retune()?
        };
        self.tuning_changed |= tuning.is_some_and(|tuning| tuning != deal.tuning);
        let done = epoch_ends && self.is_done(settings, replica.position.epoch + 1);
        let next = if done { Next::Finish } else { next };
        Ok(StepDecision {
            learning_rate: finite.then_some(settings.learning_rate * self.learning_rate_factor),
            tuning: tuning.unwrap_or(deal.tuning),
            next,
            brain: (next == Next::Shrink).then(|| Box::new(self.brain.state())),
        })
    }

    /// An epoch's samples must add up. That is settled before the others go on, perhaps without this process.
    fn close_epoch(&mut self, settings: &Settings, epoch: u32, finished: FinishedEpoch) -> Result<(), TrainerError> {
        let FinishedEpoch { tally, mean_loss } = finished;
        let (epoch, expected) = (epoch + 1, Tally::of_epoch(settings.recipe.samples));
        if tally != expected {
            return Err(TrainerError::Epoch { epoch, found: tally, expected });
        }
        self.finished_loss = mean_loss;
        self.audit.as_ref().map_or(Ok(()), |audit| audit.append(epoch, tally))
    }

    /// Tells of the epoch that just ended.
    pub(crate) fn record_epoch(&mut self, settings: &Settings, epochs_done: u32, deal: &Deal, accuracy: f64) {
        if settings.quiet {
            return;
        }
        let of_epochs = match settings.until {
            GoalKind::Passes => format!("/{}", settings.epochs),
            GoalKind::Progress => String::new(),
        };
        let loss = self.finished_loss;
        let noise = self.brain.noise_scale().map_or(String::new(), |scale| format!(", noise scale {scale:.0}"));
        let (batch, factor) = (batch(deal), self.learning_rate_factor);
        let rate = self.epoch_rate.over(self.brain.samples(), Duration::ZERO).unwrap_or_default();
        say(format_args!(
            "epoch {epochs_done}{of_epochs}: loss {loss:.4}, accuracy {accuracy:.4}{noise}, {batch}, \
             learning rate x{factor:.2}, {rate:.0} samples/s"
        ));
    }

    /// After every step: learns from its time, and tells and saves what is due.
    pub(crate) fn after_step(
        &mut self,
        settings: &Settings,
        replica: &Replica,
        deal: &Deal,
        observation: Option<&StepObservation>,
        membership: &Membership,
    ) {
        if let Some(observation) = observation {
            self.brain.observe(observation);
        }
        if let Some((generation, pause_s)) = self.announcement.take() {
            if !settings.quiet {
                let pause = pause_s.map_or("started".to_owned(), |pause_s| format!("paused for {pause_s:.3} s"));
                let generation = if generation > 0 { format!("generation {generation} ") } else { String::new() };
                say(format_args!("{generation}{pause}: {}", batch(deal)));
            }
            if let Some(worker) = membership.worker() {
                worker.ready(generation, pause_s);
            }
        }
        if self.tuning_changed || self.reported.is_none_or(|last| last.elapsed() >= REPORT_EVERY) {
            self.report(membership);
        }
        if self.saved.elapsed() >= settings.checkpoint_every
            && let Err(error) = self.save(settings, replica)
        {
            // A full disk may be emptied before the next one is due.
            eprintln!("{error}; training goes on");
        }
    }

    pub(crate) fn report(&mut self, membership: &Membership) {
        let samples_per_s = self.rate.over(self.brain.samples(), RATE_MIN);
        (self.reported, self.tuning_changed) = (Some(Instant::now()), false);
        if let Some(worker) = membership.worker() {
            worker.report(membership.settled(), self.brain.report(samples_per_s));
        }
    }

    pub(crate) fn save(&mut self, settings: &Settings, replica: &Replica) -> Result<(), TrainerError> {
        self.saved = Instant::now();
        match &self.checkpoints {
            Some(checkpoints) => checkpoints.save(&settings.recipe, replica, &self.brain.state()),
            None => Ok(()),
        }
    }

    /// The generation that is complete now, and how long the training stood still for it.
    pub(crate) fn announce(&mut self, generation: u64, pause_s: Option<f64>) {
        self.announcement = Some((generation, pause_s));
    }

    pub(crate) const fn samples(&self) -> u64 {
        self.brain.samples()
    }
}

/// Samples per second since the last time it was long enough to tell.
struct Rate {
    since: Instant,
    samples: u64,
    last: Option<f64>,
}

impl Rate {
    fn new(samples: u64) -> Self {
        Self { since: Instant::now(), samples, last: None }
    }

    fn over(&mut self, samples: u64, shortest: Duration) -> Option<f64> {
        let elapsed = self.since.elapsed();
        if elapsed >= shortest {
            self.last = Some((samples - self.samples) as f64 / elapsed.as_secs_f64());
            (self.since, self.samples) = (Instant::now(), samples);
        }
        self.last
    }
}

/// A batch in words.
fn batch(deal: &Deal) -> String {
    let Tuning { local_batch, accumulation_steps } = deal.tuning;
    let micro_batches = if accumulation_steps > 0 { format!(" x {}", accumulation_steps + 1) } else { String::new() };
    let plural = if deal.world_size == 1 { "" } else { "s" };
    format!("batch {} = {} GPU{plural} x {local_batch}{micro_batches}", deal.batch_size(), deal.world_size)
}

/// A line to stdout.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    // A training whose output nobody reads any more is still worth finishing.
    let _ = writeln!(std::io::stdout(), "{line}");
}
