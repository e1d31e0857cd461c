//! One turn: what Slurm says is taken in, what is not wanted is given up, what is wanted is asked for.

use std::fs;
use std::time::Duration;

use tracing::{error, warn};

use crate::decision::{Decision, Demand, backoff_s, breaks, decide};
use crate::listing::Listed;
use crate::process::CommandError;
use crate::queue::{Allocation, Ended, Happening, Queue, Stage};
use crate::queues::{Files, Machine, Opened, Place, Queues, QueuesError, new_allocation};
use crate::script;
use crate::slurm::{self, Order, SBATCH_MAX};
use crate::states::{Progress, progress};

/// An `sbatch` of which nobody has heard how it ended has ended by then.
const SETTLED: Duration = SBATCH_MAX.saturating_add(Duration::from_secs(10));
/// Of `squeue`, after failures: the interval is doubled so often at most.
const DOUBLINGS_MAX: u32 = 5;

/// What a turn is told.
pub struct Turn<'a> {
    /// When it is, in milliseconds since 1970.
    pub now_ms: u64,
    /// Between two looks at Slurm.
    pub interval: Duration,
    /// What agents are told.
    pub place: &'a Place,
    /// All machines that have joined.
    pub machines: &'a [Machine],
    /// What agents may take to end what they run.
    pub grace: Duration,
}

/// What is to become of machines and nodes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Orders {
    /// Machines that are to end what they run and leave, or are gone already.
    pub leave: Vec<String>,
    /// Nodes that are to be emptied.
    pub drain: Vec<String>,
}

impl Queues {
    /// Looks at Slurm if that is due, and does what follows. Returns what is to become of machines.
    pub fn turn(&self, turn: &Turn<'_>, mut demand: impl FnMut(&Queue) -> Demand) -> Result<Orders, QueuesError> {
        let is_due = self.is_due(turn.now_ms);
        let mut orders = Orders::default();
        if is_due {
            let prefix = self.with(|opened| {
                opened.look_at_ms = turn.now_ms.saturating_add(milliseconds(turn.interval));
                Ok(opened.journal.prefix())
            })?;
            let looked = slurm::list(&prefix);
            orders.leave = self.with(|opened| turn.look(opened, looked))?;
        }
        self.give_back(turn, &mut orders);
        if is_due && self.with(|opened| Ok(opened.trouble.is_none()))? {
            for queue in self.list() {
                self.ask(turn, &queue, &demand(&queue))?;
            }
        }
        Ok(orders)
    }

    /// Ends what was given up. Those who run there leave first, and then the machines, which have nothing left to do.
    fn give_back(&self, turn: &Turn<'_>, orders: &mut Orders) {
        let mut jobs = Vec::new();
        let patience_ms = milliseconds(turn.grace + Duration::from_secs(60));
        for queue in self.list() {
            for allocation in &queue.allocations {
                let (Some(given_up), Some(job)) = (&allocation.given_up, allocation.job) else { continue };
                let connected = turn.connected(&queue, allocation);
                let age_ms = turn.now_ms.saturating_sub(given_up.at_ms);
                if allocation.stage != Stage::Runs || connected.is_empty() || age_ms > 2 * patience_ms {
                    jobs.push(job);
                    continue;
                }
                for machine in connected {
                    let nodes = machine.nodes.iter().filter(|node| !node.is_draining);
                    orders.drain.extend(nodes.map(|node| node.name.clone()));
                    let is_empty = machine.nodes.iter().all(|node| node.is_draining && node.held == 0);
                    // Those that do not leave are ended with some grace, and at last by Slurm.
                    if is_empty || age_ms > patience_ms {
                        orders.leave.push(machine.name.clone());
                    }
                }
            }
        }
        if let Err(failure) = slurm::cancel(&jobs) {
            warn!(%failure, "allocations are not given back yet");
        }
    }

    /// Asks for what a queue is worth.
    fn ask(&self, turn: &Turn<'_>, queue: &Queue, demand: &Demand) -> Result<(), QueuesError> {
        let name = &queue.spec.name;
        let Decision { ask, give_up, sentence } = decide(queue, demand, turn.now_ms);
        let is_unwanted = demand.allocations == 0 && !demand.wants_waiting;
        let unwanted_since_ms = is_unwanted.then(|| queue.unwanted_since_ms.unwrap_or(turn.now_ms));
        self.with(|opened| {
            if unwanted_since_ms != queue.unwanted_since_ms || !give_up.is_empty() {
                let text = "no job has wanted it for as long as --idle-timeout says".to_owned();
                opened.journal.change(|queues| {
                    let Some(queue) = named(queues, name) else { return };
                    queue.unwanted_since_ms = unwanted_since_ms;
                    let unwanted = queue.allocations.iter_mut().filter(|it| give_up.contains(&it.number));
                    unwanted.for_each(|it| it.given_up = Some(Happening { at_ms: turn.now_ms, text: text.clone() }));
                })?;
            }
            opened.journal.say(name, sentence);
            Ok(())
        })?;
        for _ in 0..ask {
            if !self.ask_for_one(turn, name)? {
                break;
            }
        }
        Ok(())
    }

    /// Asks for an allocation, which is on the disk before anybody is asked. Returns whether Slurm has taken it.
    fn ask_for_one(&self, turn: &Turn<'_>, name: &str) -> Result<bool, QueuesError> {
        let begun = self.with(|opened| {
            let number = opened.journal.next();
            let allocation = new_allocation(number, format!("{}{name}-{number}", opened.journal.prefix()), turn.now_ms);
            let asked = opened.journal.change(|queues| {
                let queue = named(queues, name).filter(|queue| !queue.is_removed && !queue.is_paused)?;
                queue.allocations.push(allocation.clone());
                Some(queue.spec.clone())
            })?;
            Ok(asked.map(|spec| (Files::of(opened, &spec, &allocation.name), spec, allocation)))
        })?;
        // It was paused or removed in the meantime.
        let Some((files, spec, allocation)) = begun else { return Ok(false) };
        let written = files.prepare(turn.place).and_then(|()| files.write_script(&spec, &allocation, &turn.place.url));
        let batch = script::batch(&files.script);
        let order = Order { name: &allocation.name, spec: &spec, output: &files.output, batch: &batch };
        let outcome = match written {
            Ok(()) => slurm::submit(&order),
            Err(error) => Err(CommandError::Start { program: "sbatch".to_owned(), reason: error.to_string() }),
        };
        let is_taken = outcome.is_ok();
        self.with(|opened| {
            Ok(opened.journal.change(|queues| {
                if let Some(queue) = named(queues, name) {
                    turn.answered(queue, allocation.number, outcome);
                }
            })?)
        })?;
        Ok(is_taken)
    }
}

fn named<'a>(queues: &'a mut [Queue], name: &str) -> Option<&'a mut Queue> {
    queues.iter_mut().find(|queue| queue.spec.name == name)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Turn<'_> {
    fn connected<'a>(&'a self, queue: &Queue, allocation: &Allocation) -> Vec<&'a Machine> {
        self.machines_of(queue, allocation).into_iter().filter(|it| it.is_connected).collect()
    }

    fn machines_of<'a>(&'a self, queue: &Queue, allocation: &Allocation) -> Vec<&'a Machine> {
        self.machines.iter().filter(|it| allocation.has_machine(&queue.spec.name, &it.name)).collect()
    }

    /// What `sbatch` said.
    fn answered(&self, queue: &mut Queue, number: u64, outcome: Result<u64, CommandError>) {
        let Some(allocation) = queue.allocations.iter_mut().find(|it| it.number == number) else { return };
        // One that was ended may have reached Slurm, which may not have come to it yet.
        allocation.is_settled = !matches!(outcome, Err(CommandError::Slow { .. }));
        match outcome {
            Ok(job) => {
                (allocation.stage, allocation.job) = (Stage::Waits, Some(job));
                queue.refusals = 0;
                queue.note(self.now_ms, format!("Slurm job {job} was asked for."));
            }
            Err(error) => {
                queue.refusals += 1;
                queue.not_before_ms = self.now_ms.saturating_add(1_000 * backoff_s(queue.refusals));
                queue.note(self.now_ms, format!("{error}."));
                let said = match error {
                    CommandError::Refused { said, .. } => said,
                    error => error.to_string(),
                };
                self.stop_after_failures(queue, &said);
            }
        }
    }

    fn stop_after_failures(&self, queue: &mut Queue, said: &str) {
        if let Some(reason) = breaks(queue, said).filter(|_| queue.stopped.is_none()) {
            error!(queue = queue.spec.name, reason, "nothing is asked for any more until it is resumed");
            queue.note(self.now_ms, format!("Nothing is asked for any more: {reason}."));
            queue.stopped = Some(reason);
        }
    }

    /// Takes in what Slurm lists. Returns machines that are gone with their allocations.
    fn look(&self, opened: &mut Opened, looked: Result<Vec<Listed>, CommandError>) -> Result<Vec<String>, QueuesError> {
        let listed = match looked {
            Ok(listed) => listed,
            Err(failure) => {
                let doublings = opened.looks_failed.min(DOUBLINGS_MAX);
                opened.looks_failed = opened.looks_failed.saturating_add(1);
                opened.look_at_ms = self.now_ms.saturating_add(milliseconds(self.interval) << doublings);
                let wait_s = (opened.look_at_ms - self.now_ms).div_ceil(1_000);
                let sentence = format!("Slurm does not answer, and is asked again in {wait_s} s: {failure}.");
                warn!(%failure, "Slurm does not answer");
                let names: Vec<String> = opened.journal.queues().iter().map(|queue| queue.spec.name.clone()).collect();
                names.iter().for_each(|name| opened.journal.say(name, sentence.clone()));
                opened.trouble = Some(sentence);
                return Ok(Vec::new());
            }
        };
        (opened.looks_failed, opened.trouble) = (0, None);
        let is_known = |it: &Listed| {
            opened.journal.queues().iter().any(|queue| queue.allocations.iter().any(|known| known.name == it.name))
        };
        let is_alive = |it: &Listed| progress(&it.state) != Some(Progress::Over);
        let strays: Vec<u64> = listed.iter().filter(|it| is_alive(it) && !is_known(it)).map(|it| it.job).collect();
        if !strays.is_empty() {
            warn!(?strays, "Slurm jobs that no queue knows any more are cancelled");
            if let Err(failure) = slurm::cancel(&strays) {
                warn!(%failure, "they are not cancelled yet");
            }
        }
        let mut queues = opened.journal.queues().to_vec();
        let (mut gone, mut over) = (Vec::new(), Vec::new());
        for queue in &mut queues {
            over.extend(self.update(queue, &listed, &mut gone));
        }
        queues.retain(|queue| !(queue.is_removed && queue.allocations.is_empty()));
        for (queue, ended) in &over {
            forget(opened, queue, ended);
        }
        if queues != opened.journal.queues() {
            opened.journal.change(|kept| *kept = queues)?;
        }
        Ok(gone)
    }

    /// What became of the allocations of a queue. Returns those of which no file is to be kept.
    fn update(&self, queue: &mut Queue, listed: &[Listed], gone: &mut Vec<String>) -> Vec<(Queue, Ended)> {
        let mut dropped = Vec::new();
        for mut allocation in std::mem::take(&mut queue.allocations) {
            for machine in self.machines_of(queue, &allocation) {
                allocation.has_joined = true;
                queue.misses = 0;
                if let Some(node) = machine.nodes.first() {
                    (queue.gpus_seen, queue.type_seen) = (Some(node.gpus), Some(node.gpu_type.clone()));
                }
            }
            let found = listed.iter().find(|it| it.name == allocation.name);
            let is_over = match found {
                Some(found) => self.take(queue, &mut allocation, found),
                None if allocation.stage == Stage::Asked => {
                    let age_ms = self.now_ms.saturating_sub(allocation.asked_ms);
                    if allocation.is_settled || age_ms > milliseconds(SETTLED) {
                        dropped.push(Ended { name: allocation.name.clone(), job: 0 });
                        continue;
                    }
                    false
                }
                None => {
                    "UNKNOWN".clone_into(&mut allocation.state);
                    true
                }
            };
            // Whoever still speaks may still run something.
            let is_left = self.connected(queue, &allocation).is_empty();
            let is_back = allocation.stage == Stage::Waits && allocation.has_joined;
            if is_left && (is_over || is_back) {
                gone.extend(self.machines_of(queue, &allocation).into_iter().map(|it| it.name.clone()));
            }
            if is_left && is_back && !is_over {
                queue.note(self.now_ms, format!("{} waits again: Slurm has taken its nodes.", allocation.label()));
                (allocation.has_joined, allocation.asked_ms) = (false, self.now_ms);
            }
            if !is_left || !is_over {
                queue.allocations.push(allocation);
                continue;
            }
            self.end(queue, &allocation);
            let ended = Ended { name: allocation.name.clone(), job: allocation.job.unwrap_or_default() };
            dropped.extend(queue.has_ended(ended));
        }
        let queue = Queue { allocations: Vec::new(), happenings: Vec::new(), ..queue.clone() };
        dropped.into_iter().map(|ended| (queue.clone(), ended)).collect()
    }

    /// What Slurm says of an allocation; returns whether it is over.
    fn take(&self, queue: &mut Queue, allocation: &mut Allocation, found: &Listed) -> bool {
        let is_new = allocation.state != found.state;
        allocation.job = Some(found.job);
        found.state.clone_into(&mut allocation.state);
        found.reason.clone_into(&mut allocation.reason);
        found.hosts.clone_into(&mut allocation.hosts);
        (allocation.start_ms, allocation.end_ms) =
            (found.start_s.map(|it| it * 1_000), found.end_s.map(|it| it * 1_000));
        match progress(&found.state) {
            Some(Progress::Waits) => {
                allocation.stage = Stage::Waits;
                false
            }
            Some(Progress::Runs) => {
                if allocation.stage != Stage::Runs {
                    allocation.stage = Stage::Runs;
                    let began_ms = allocation.start_ms.unwrap_or(self.now_ms);
                    queue.has_waited(began_ms.saturating_sub(allocation.asked_ms) / 1_000);
                    queue.note(self.now_ms, format!("Slurm job {} has started on {}.", found.job, found.hosts));
                }
                false
            }
            Some(Progress::Over) => true,
            None => {
                if is_new {
                    let (job, state) = (found.job, &found.state);
                    let text =
                        format!("Slurm calls the state of job {job} {state}, which is not known here: it is kept.");
                    queue.note(self.now_ms, text);
                }
                false
            }
        }
    }

    /// An allocation is over, and so are its machines.
    fn end(&self, queue: &mut Queue, allocation: &Allocation) {
        let state = &allocation.state;
        let why = allocation.given_up.as_ref().map_or_else(String::new, |it| format!(", because {}", it.text));
        let text = format!("{} has ended: {state}{why}.", allocation.label());
        queue.note(self.now_ms, text.clone());
        // Its agents have left in good order, or it was not to run.
        if allocation.has_joined || state == "COMPLETED" || allocation.given_up.is_some() {
            return;
        }
        queue.misses += 1;
        queue.not_before_ms = self.now_ms.saturating_add(1_000 * backoff_s(queue.misses));
        self.stop_after_failures(queue, &text);
    }
}

/// Nothing is kept of what an allocation was and has printed.
fn forget(opened: &Opened, queue: &Queue, ended: &Ended) {
    let files = Files::of(opened, &queue.spec, &ended.name);
    for file in [files.script, files.output] {
        match fs::remove_file(&file) {
            Err(failure) if failure.kind() != std::io::ErrorKind::NotFound => {
                warn!(file = %file.display(), %failure, "a file of an allocation that is over stays");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::spec;
    use crate::queues::MachineNode;

    const REMOVED_MS: u64 = 1_000_000;

    /// What is to become of the machines of an allocation that was given up, some seconds after that.
    fn orders(after_s: u64, held: u32, is_draining: bool) -> Orders {
        let folder = tempfile::tempdir().unwrap();
        let queues = Queues::default();
        queues.open(folder.path(), folder.path()).unwrap();
        let given_up = Some(Happening { at_ms: REMOVED_MS, text: "its queue was removed".to_owned() });
        let new = || new_allocation(1, "x".to_owned(), 0);
        let stays = Allocation { stage: Stage::Runs, job: Some(8), ..new() };
        let goes = Allocation { stage: Stage::Runs, job: Some(7), given_up, ..new() };
        let queue = Queue { allocations: vec![goes, stays], ..Queue::new(spec("a")) };
        queues.with(|opened| Ok(opened.journal.change(|queues| queues.push(queue))?)).unwrap();
        let machine = |name: &str| {
            let (name, gpus, gpu_type) = (name.to_owned(), 2, "a100".to_owned());
            let node = MachineNode { name: name.clone(), gpus, gpu_type, held, is_draining };
            Machine { name, is_connected: true, nodes: vec![node] }
        };
        let place = Place { url: String::new(), token: String::new() };
        let machines = ["a-7-0", "a-8-0"].map(machine);
        let (now_ms, second) = (REMOVED_MS + 1_000 * after_s, Duration::from_secs(1));
        let turn = Turn { now_ms, interval: second, place: &place, machines: &machines, grace: second };
        let mut orders = Orders::default();
        queues.give_back(&turn, &mut orders);
        orders
    }

    #[test]
    fn what_is_given_up_is_emptied_first_and_leaves_then_or_when_it_takes_too_long() {
        let drains = Orders { drain: vec!["a-7-0".to_owned()], ..Orders::default() };
        let leaves = Orders { leave: vec!["a-7-0".to_owned()], ..Orders::default() };
        assert_eq!(orders(1, 2, false), drains);
        assert_eq!(orders(1, 0, false), drains, "something may be on its way there");
        assert_eq!(orders(1, 1, true), Orders::default());
        assert_eq!(orders(1, 0, true), leaves);
        assert_eq!(orders(62, 1, true), leaves);
    }
}
