use std::io;
use std::thread;
use std::time::{Duration, Instant};

use pollux_agent::{Placement, StepObservation, Tuning};

use crate::args::Settings;
use crate::checkpoint::Checkpoints;
use crate::coordinator::{Coordinator, say};
use crate::error::TrainerError;
use crate::group::Group;
use crate::joining::{Joined, await_welcome, join};
use crate::membership::{Membership, ShrunkGroup, Terms};
use crate::network::Network;
use crate::optimiser::Optimiser;
use crate::rendezvous::{Address, Welcome};
use crate::samples::{Samples, Tally, order};
use crate::share::{Deal, Position};
use crate::state::{BrainState, Replica, decode, encode, floats_to_bytes};
use crate::step::{Contribution, Instruction, Next, StepDecision, Total};
use crate::wire::Line;

const TEST_SAMPLES: u32 = 1024;
/// What the last words to the scheduler may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// How a training ended that nothing went wrong with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Finished,
    /// It was told to stop, or to leave the others.
    Stopped,
    /// Another rank was told to stop, and took the group with it.
    Cut,
}

/// One process of a training.
struct Trainer {
    settings: Settings,
    membership: Membership,
    network: Network,
    training: Samples,
    test: Samples,
    replica: Replica,
    /// Of the current epoch.
    order: Vec<u32>,
    tuning: Tuning,
    /// At rank 0 only.
    coordinator: Option<Coordinator>,
    /// How long the training stood still for the generation that is coming together.
    paused: Duration,
    overruns: u64,
    steps: u64,
}

/// Finds the group, and trains with it to the end.
pub(crate) fn train(settings: Settings) -> Result<Ending, TrainerError> {
    let begun = Instant::now();
    let (membership, place) = Membership::from_env()?;
    // Everything slow comes first: once a newcomer has joined, the others wait for it.
    let mut trainer = Trainer::new(settings, membership);
    let (group, is_done) = match join(&mut trainer.membership, place)? {
        Joined::Left | Joined::Moved(_) => return Ok(Ending::Stopped),
        Joined::Leader(group) => trainer.begin(group)?,
        Joined::Follower { line, welcome, state } => trainer.enter(line, welcome, &state)?,
    };
    if is_done {
        return Ok(Ending::Finished);
    }
    let ending = trainer.run(group);
    if let (Err(TrainerError::Lost(_)), Some(coordinator)) = (&ending, &mut trainer.coordinator) {
        // Every step is either done or not, here: nothing is lost with the others but what they were at.
        coordinator.save(&trainer.settings, &trainer.replica)?;
    }
    if matches!(ending, Ok(Ending::Finished)) {
        trainer.say_goodbye(begun);
        trainer.membership.finish(FAREWELL);
    }
    ending
}

impl Trainer {
    fn new(settings: Settings, membership: Membership) -> Self {
        let recipe = settings.recipe;
        let network = Network { width: recipe.width };
        let replica = Replica {
            parameters: network.initial_parameters(recipe.seed),
            optimiser: Optimiser::new(recipe.optimiser, network.parameter_count()),
            position: Position::default(),
        };
        Self {
            membership,
            network,
            training: Samples::training(recipe.seed, recipe.samples, recipe.label_noise),
            test: Samples::test(recipe.seed, TEST_SAMPLES),
            replica,
            order: Vec::new(),
            tuning: Tuning { local_batch: 1, accumulation_steps: 0 },
            coordinator: None,
            paused: Duration::ZERO,
            overruns: 0,
            steps: 0,
            settings,
        }
    }

    /// Rank 0 of a new group: takes the training up where it was saved, and tells everybody. Also says whether there is
    /// nothing left to do.
    fn begin(&mut self, mut group: Group) -> Result<(Group, bool), TrainerError> {
        let mut brain = None;
        if let Some(folder) = &self.settings.checkpoint_dir {
            let saved = Checkpoints::open(folder)?.load(&self.settings.recipe, self.network.parameter_count())?;
            if let Some((replica, state)) = saved {
                (self.replica, brain) = (replica, Some(state));
            }
        }
        if let Some(pace) = self.settings.pace.as_ref().filter(|_| !self.settings.quiet) {
            say(format_args!("paced like {pace}: each step sleeps until it is as long as that throughput model says"));
        }
        let Position { epoch, cursor } = self.replica.position;
        if !self.settings.quiet && brain.is_some() {
            say(format_args!("carrying on in epoch {} after {cursor} samples", epoch + 1));
        }
        self.take_position();
        let coordinator = self.coordinator.insert(Coordinator::open(&self.settings, brain)?);
        coordinator.keep_audit(epoch)?;
        coordinator.announce(self.membership.settled(), None);
        let is_done = cursor == 0 && coordinator.is_done(&self.settings, epoch);
        self.welcome(&mut group, 1, is_done)?;
        Ok((group, is_done))
    }

    /// Another rank that was welcomed with a state.
    fn enter(&mut self, line: Line, welcome: Welcome, state: &[u8]) -> Result<(Group, bool), TrainerError> {
        let parameter_count = self.network.parameter_count();
        let state = decode(state, &self.settings.recipe, parameter_count).map_err(TrainerError::Welcome)?;
        self.replica = state.0;
        self.take_position();
        let is_done = welcome.is_done;
        Ok((self.follow(line, welcome)?, is_done))
    }

    fn run(&mut self, mut group: Group) -> Result<Ending, TrainerError> {
        loop {
            let generation = self.membership.settled();
            let decision = self.step(&mut group)?;
            let stopped = Instant::now();
            group = match decision.next {
                Next::Train => continue,
                Next::Shrink => match self.shrink(group, decision.brain)? {
                    Some(group) => group,
                    None => return Ok(Ending::Stopped),
                },
                Next::Grow => self.grow(group)?,
                Next::Stop { wanted } => {
                    self.save()?;
                    let told = wanted || self.membership.is_terminated();
                    return Ok(if told { Ending::Stopped } else { Ending::Cut });
                }
                Next::Finish => {
                    self.save()?;
                    return Ok(Ending::Finished);
                }
            };
            self.paused += stopped.elapsed();
            if self.membership.settled() > generation {
                let paused = std::mem::take(&mut self.paused);
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.announce(self.membership.settled(), Some(paused.as_secs_f64()));
                }
            }
        }
    }

    /// One optimiser step of the whole group.
    fn step(&mut self, group: &mut Group) -> Result<StepDecision, TrainerError> {
        let begun = Instant::now();
        let (heard, instruction) = self.membership.listen(group);
        let Position { epoch, cursor } = self.replica.position;
        let deal = Deal { cursor, end: self.training.len(), world_size: group.world_size(), tuning: self.tuning };
        let mut gradient = vec![0.0; self.network.parameter_count()];
        let own = self.contribute(&deal, group.rank(), &mut gradient, (heard, instruction));
        let computed = begun.elapsed();

        let (decision, sent) = match &mut self.coordinator {
            None => (group.exchange(&own, &mut gradient).map_err(TrainerError::Lost)?, Ok(())),
            Some(coordinator) => {
                let contributions = group.gather(own, &mut gradient).map_err(TrainerError::Lost)?;
                let total = Total::of(&contributions);
                let share = 1.0 / total.tally.samples.max(1) as f32;
                gradient.iter_mut().for_each(|value| *value *= share);
                let next = self.membership.decide(group, &total);
                coordinator.set_batch_mode(self.membership.terms().batch);
                let decision = coordinator.conclude(&self.settings, &self.replica, &deal, &total, &gradient, next)?;
                let sent = group.broadcast(&decision, &floats_to_bytes(&gradient));
                (decision, sent)
            }
        };
        self.apply(&deal, &decision, &gradient);
        let synced = begun.elapsed();
        if self.replica.position.epoch > epoch {
            self.record_epoch(&deal);
        }
        // Only now: whoever did not hear of the step is lost, but the step is whole.
        sent.map_err(TrainerError::Lost)?;
        self.wait_for_pace(&deal, group, begun);
        self.steps += 1;
        if let Some(coordinator) = &mut self.coordinator {
            let micro_batches = f64::from(deal.tuning.accumulation_steps + 1);
            let Terms { gpu_type, shares_gpus, .. } = self.membership.terms();
            let measured = StepObservation {
                placement: Placement { shape: group.shape(), gpu_type },
                local_batch: deal.tuning.local_batch,
                accumulation_steps: deal.tuning.accumulation_steps,
                compute_s: computed.as_secs_f64() / micro_batches,
                sync_s: (synced - computed).as_secs_f64(),
            };
            let told = match &self.settings.pace {
                Some(pace) => pace.observation(&measured),
                None => measured,
            };
            let told = Some(&told).filter(|_| !deal.is_cut() && !shares_gpus);
            coordinator.after_step(&self.settings, &self.replica, &deal, told, &self.membership);
        }
        Ok(decision)
    }

    /// This rank's share of a step: the sum of its samples' gradients, and what it has to say.
    fn contribute(
        &self,
        deal: &Deal,
        rank: u32,
        gradient: &mut [f32],
        (heard, instruction): (u64, Instruction),
    ) -> Contribution {
        let preconditioner = self.replica.optimiser.preconditioner();
        let mut tally = Tally::default();
        let (mut loss, mut micro_sqr) = (0.0, 0.0);
        let mut micro = vec![0.0; gradient.len()];
        for range in deal.of_rank(rank) {
            let indices = &self.order[range];
            micro.fill(0.0);
            let samples = indices.iter().map(|&idx| {
                tally.count(idx);
                idx
            });
            loss += self.network.learn(&self.replica.parameters, &self.training, samples, &mut micro).loss;
            for (sum, value) in gradient.iter_mut().zip(&micro) {
                *sum += value;
            }
            let count = indices.len() as f32;
            micro.iter_mut().for_each(|value| *value /= count);
            micro_sqr += preconditioner.squared_norm(&micro).unwrap_or(0.0);
        }
        let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
        let Tally { samples, checksum } = tally;
        Contribution { heard, instruction, samples, checksum, loss: finite(loss), micro_sqr: finite(micro_sqr) }
    }

    /// Does what the decision says to parameters and position; every rank does the same.
    fn apply(&mut self, deal: &Deal, decision: &StepDecision, gradient: &[f32]) {
        let Replica { parameters, optimiser, position } = &mut self.replica;
        if let Some(learning_rate) = decision.learning_rate {
            optimiser.update(parameters, gradient, learning_rate);
        }
        self.tuning = decision.tuning;
        position.cursor += deal.samples();
        if position.cursor == deal.end {
            *position = Position { epoch: position.epoch + 1, cursor: 0 };
            self.take_position();
        }
    }

    fn take_position(&mut self) {
        self.order = order(self.settings.recipe.seed, self.replica.position.epoch, self.training.len());
    }

    fn record_epoch(&mut self, deal: &Deal) {
        let Some(coordinator) = &mut self.coordinator else { return };
        let score = self.network.evaluate(&self.replica.parameters, &self.test);
        let accuracy = score.accuracy(u64::from(TEST_SAMPLES));
        coordinator.record_epoch(&self.settings, self.replica.position.epoch, deal, accuracy);
    }

    /// Sleeps for the rest of a step that is to take as long as a model says.
    fn wait_for_pace(&mut self, deal: &Deal, group: &Group, begun: Instant) {
        let Some(pace) = &self.settings.pace else { return };
        let share = f64::from(deal.samples()) / deal.batch_size() as f64;
        let step = Duration::from_secs_f64(pace.step_s(group.shape(), deal.tuning, share));
        match step.checked_sub(begun.elapsed()) {
            Some(rest) => thread::sleep(rest),
            None => self.overruns += 1,
        }
    }

    /// Goes on without those who leave; `None` if this process is one of them. Rank 0 may be among them, which is why it
    /// told everybody what it knows.
    fn shrink(&mut self, group: Group, brain: Option<Box<BrainState>>) -> Result<Option<Group>, TrainerError> {
        match self.membership.shrink(group)? {
            None => Ok(None),
            Some(ShrunkGroup::Follower(line)) => self.hear_welcome(line).map(Some),
            Some(ShrunkGroup::Leader(mut group)) => {
                if self.coordinator.is_none() {
                    self.coordinator = Some(Coordinator::open(&self.settings, brain.map(|brain| *brain))?);
                }
                let survivors = group.world_size();
                self.welcome(&mut group, survivors, false)?;
                Ok(Some(group))
            }
        }
    }

    /// Goes on with those who have come.
    fn grow(&mut self, group: Group) -> Result<Group, TrainerError> {
        let survivors = group.world_size();
        if group.is_leader() {
            let mut group = self.membership.grow(group)?;
            self.welcome(&mut group, survivors, false)?;
            Ok(group)
        } else {
            let line = group.into_leader_line().expect("everybody but rank 0 has one");
            self.hear_welcome(line)
        }
    }

    /// Rank 0 tells a changed group how it goes on; those from rank `newcomers` on get the state of the training, too.
    fn welcome(&mut self, group: &mut Group, newcomers: u32, is_done: bool) -> Result<(), TrainerError> {
        let coordinator = self.coordinator.as_mut().expect("rank 0 has one");
        self.tuning = coordinator.resize(group, self.membership.terms())?;
        let generation = self.membership.settled();
        let members = group.members().to_vec();
        let welcome = Address::Welcome(Welcome { generation, members, tuning: self.tuning, is_done });
        let told = group.send(|rank| rank < newcomers, &welcome, &[]);
        let state = if newcomers < group.world_size() {
            encode(&self.settings.recipe, &self.replica, &coordinator.brain_state())
        } else {
            Vec::new()
        };
        let told = told.and(group.send(|rank| rank >= newcomers, &welcome, &state));
        told.map_err(TrainerError::Lost)
    }

    fn hear_welcome(&mut self, mut line: Line) -> Result<Group, TrainerError> {
        let (welcome, _) = await_welcome(&mut line).map_err(TrainerError::Lost)?;
        self.follow(line, welcome)
    }

    fn follow(&mut self, line: Line, welcome: Welcome) -> Result<Group, TrainerError> {
        self.coordinator = None;
        self.tuning = welcome.tuning;
        if welcome.generation > self.membership.settled() {
            self.membership.settle(welcome.generation);
        }
        let unlisted = || TrainerError::Lost(io::Error::other("rank 0 welcomed another process"));
        Group::follow(welcome.members, self.membership.me(), line).ok_or_else(unlisted)
    }

    fn save(&mut self) -> Result<(), TrainerError> {
        match &mut self.coordinator {
            Some(coordinator) => coordinator.save(&self.settings, &self.replica),
            None => Ok(()),
        }
    }

    fn say_goodbye(&mut self, begun: Instant) {
        let Some(coordinator) = &mut self.coordinator else { return };
        coordinator.report(&self.membership);
        if self.settings.quiet {
            return;
        }
        let (samples, epochs) = (coordinator.samples(), self.replica.position.epoch);
        let overruns = match self.overruns {
            0 => String::new(),
            overruns => format!(", {overruns} of {} steps took longer than their pace", self.steps),
        };
        say(format_args!(
            "done: {epochs} epochs, {samples} samples in {:.1} s{overruns}",
            begun.elapsed().as_secs_f64()
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use clap::Parser;

    use super::*;
    use crate::args::Args;
    use crate::brain::Brain;

    fn trainer(args: &[&str]) -> Trainer {
        let settings = Args::parse_from(["pollux-trainer"].iter().chain(args)).check().unwrap();
        let mut trainer = Trainer::new(settings, Membership::from_env().unwrap().0);
        trainer.take_position();
        trainer
    }

    /// Mean gradient of some samples, and their mean squared norm.
    fn gradients(trainer: &Trainer, indices: Range<u32>) -> (Vec<f32>, f64) {
        let preconditioner = trainer.replica.optimiser.preconditioner();
        let count = indices.len() as u32;
        let mut mean = vec![0.0; trainer.network.parameter_count()];
        let mut squares = 0.0;
        for idx in indices {
            let mut gradient = vec![0.0; mean.len()];
            trainer.network.learn(&trainer.replica.parameters, &trainer.training, std::iter::once(idx), &mut gradient);
            squares += preconditioner.squared_norm(&gradient).unwrap() / f64::from(count);
            mean.iter_mut().zip(gradient).for_each(|(mean, value)| *mean += value / count as f32);
        }
        (mean, squares)
    }

    /// Lets the parameters stand still while the brain looks at a number of epochs.
    fn estimated_noise(trainer: &mut Trainer, world_size: u32, tuning: Tuning) -> (f64, f64) {
        let mut brain = Brain::new(trainer.settings.brain.clone());
        for epoch in 0..40 {
            trainer.replica.position = Position { epoch, cursor: 0 };
            trainer.take_position();
            let mut deal = Deal { cursor: 0, end: trainer.training.len(), world_size, tuning };
            while deal.cursor < deal.end {
                let mut gradient = vec![0.0; trainer.network.parameter_count()];
                let parts =
                    (0..world_size).map(|rank| trainer.contribute(&deal, rank, &mut gradient, (0, Instruction::Train)));
                let total = Total::of(&parts.collect::<Vec<_>>());
                gradient.iter_mut().for_each(|value| *value /= deal.samples() as f32);
                brain.learn(&deal, &total, &gradient, trainer.replica.optimiser.preconditioner());
                deal.cursor += deal.samples();
            }
        }
        let noise = brain.report(None).noise.unwrap();
        (noise.sqr(), noise.var())
    }

    #[test]
    fn the_noise_scale_is_that_of_all_single_gradients_however_the_batch_is_cut() {
        for optimiser in ["sgd", "adam"] {
            let mut trainer =
                trainer(&["--samples", "512", "--width", "8", "--batch-size", "32", "--optimiser", optimiser]);
            // Adam's second moment must mean something.
            for batch in (0..16).chain(0..16) {
                let (mean, _) = gradients(&trainer, batch * 32..batch * 32 + 32);
                trainer.replica.optimiser.update(&mut trainer.replica.parameters, &mean, 0.001);
            }
            let (mean, squares) = gradients(&trainer, 0..512);
            let mean_sqr = trainer.replica.optimiser.preconditioner().squared_norm(&mean).unwrap();
            // Batches are drawn without replacement, so that one that is above the mean leaves others below it.
            let variance = (squares - mean_sqr) / 511.0;
            let (sqr, var) = (mean_sqr - variance, variance * 512.0 / 32.0);
            for (world_size, local_batch, accumulation_steps) in [(2, 8, 1), (4, 16, 0), (1, 8, 3), (1, 32, 0)] {
                let (estimated_sqr, estimated_var) =
                    estimated_noise(&mut trainer, world_size, Tuning { local_batch, accumulation_steps });
                let (sqr_ratio, var_ratio) = (estimated_sqr / sqr, estimated_var / var);
                let near = |ratio: f64| (0.9..1.1).contains(&ratio);
                assert!(near(sqr_ratio) && near(var_ratio), "{optimiser} {world_size}: {sqr_ratio} {var_ratio}");
            }
        }
    }
}
