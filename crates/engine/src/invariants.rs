use std::collections::{BTreeMap, BTreeSet};

use pollux_policy::{Allocation, JobId, NodeId, ReplicaResources};

use crate::job::HeldGpus;
use crate::{Engine, Job, JobState, Leaving, Revision};

impl Engine {
    /// Panics if the state contradicts itself. Tests and the simulator call it after every step.
    pub fn check_invariants(&self) {
        let mut held = Tally::default();
        let mut crowding = Tally::default();
        let mut planned = Tally::default();
        let mut waiting: BTreeSet<(NodeId, JobId)> = BTreeSet::new();
        let mut timers = BTreeSet::new();
        for (&id, job) in &self.jobs {
            assert_eq!(id, job.id, "a job is filed under another number");
            check_job(job);
            self.check_guest(job);
            let replica = job.per_replica();
            let owner = if job.guest_of.is_some() { replica.as_guest() } else { replica };
            held.add(owner, &job.group);
            planned.add(owner, &job.target);
            for leaving in &job.leaving {
                held.add(replica.as_guest(), &leaving.allocation);
                held.add(only_gpus(replica), &leaving.held.owned);
                crowding.add(only_gpus(replica), &leaving.held.shared);
            }
            waiting.extend(job.target.minus(&job.group).iter().map(|(node, _)| (node, id)));
            timers.extend(job.timer.map(|at| (at, id)));
            assert!(self.launchable(job).is_none(), "{id} could be launched but is not");
        }
        assert_eq!(timers, self.timers, "jobs and the clock disagree about timers");
        for node in self.nodes.iter() {
            let (id, gpus) = (node.id(), node.gpus());
            assert!(node.gpus_held() <= gpus, "{id} has {gpus} GPUs but {} are held", node.gpus_held());
            let held = held.take(id);
            assert_eq!(node.gpus_held(), held.gpus, "{id} and its jobs disagree about the GPUs held");
            assert_eq!(node.crowding(), crowding.take(id).gpus, "{id} and its jobs disagree about who is in the way");
            let (cpus, memory) = (u64::from(node.cpus_held()), u128::from(node.memory_held()));
            let counted = (node.cpus().map_or(0, |_| held.cpus), node.memory().map_or(0, |_| held.memory));
            assert_eq!((cpus, memory), counted, "{id} and its jobs disagree about CPUs and memory");
            let planned = planned.take(id);
            assert!(planned.gpus <= gpus, "{id} has {gpus} GPUs but {} are planned", planned.gpus);
            if !node.is_overcommitted() {
                assert!(node.cpus().is_none_or(|cpus| planned.cpus <= cpus.into()), "{id} is planned too many CPUs");
                assert!(node.memory().is_none_or(|memory| planned.memory <= memory.into()), "{id} is planned too full");
            }
            let is_wanted = planned.gpus > 0 || node.is_empty();
            assert!(!node.is_retired() || !is_wanted, "{id} is retired, and is empty or to get replicas");
            let expected: BTreeSet<JobId> =
                waiting.range((id, JobId(0))..=(id, JobId(u64::MAX))).map(|&(_, job)| job).collect();
            assert_eq!(*node.waiting(), expected, "{id} and the jobs that wait for it disagree");
        }
        assert!(held.0.is_empty(), "GPUs are held on lost nodes: {held:?}");
        assert!(crowding.0.is_empty(), "somebody is in the way on lost nodes: {crowding:?}");
        assert!(planned.0.is_empty(), "GPUs are planned on lost nodes: {planned:?}");
        assert!(self.ended.iter().all(|job| job.state.is_ended() && job.gpus_held() == 0), "an ended job holds GPUs");
    }

    /// A guest has one host, is its only guest, and nowhere without it.
    fn check_guest(&self, job: &Job) {
        let id = job.id;
        if let Some(host) = job.guest_of {
            let host = self.jobs.get(&host).unwrap_or_else(|| panic!("{id} is the guest of {host}, which is gone"));
            assert_eq!((host.guest, host.guest_of), (Some(id), None), "{id} and its host disagree");
            assert!(
                !job.target.is_empty() && job.target.is_within(&host.target),
                "{id} is to go where its host is not"
            );
            assert!(job.group.is_within(&host.group), "{id} is where its host is not");
            assert_eq!(job.per_replica().gpus, host.per_replica().gpus, "{id} shares GPUs with other replicas");
        }
        let guest = job.guest.and_then(|guest| self.jobs.get(&guest));
        assert!(job.guest.is_none() || guest.is_some_and(|guest| guest.guest_of == Some(id)), "{id} lost its guest");
    }
}

fn check_job(job: &Job) {
    let id = job.id;
    let (group, target) = (&job.group, &job.target);
    assert!(group.minus(target).is_empty(), "{id} has replicas beyond its target");
    let whole = !group.is_empty() && group == target;
    let settling = matches!(job.state, JobState::Starting | JobState::Resizing { .. });
    match &job.state {
        JobState::Queued { retry_at } => {
            assert!(group.is_empty(), "{id} is queued but has a group");
            assert!(retry_at.is_none() || target.is_empty(), "{id} backs off but has a target");
            assert_eq!(job.timer, *retry_at, "{id} and its timer disagree about its backoff");
        }
        JobState::Starting | JobState::Running => assert!(whole, "{id} is {} without its whole group", job.state),
        JobState::Resizing { survivors, .. } => {
            assert!(!survivors.is_empty() && survivors.minus(group).is_empty(), "{id} lost survivors of its resize");
            assert!(group == survivors || group == target, "{id} launched a part of its additions");
        }
        JobState::Paused | JobState::Succeeded | JobState::Failed { .. } | JobState::Cancelled => {
            assert!(target.is_empty(), "{id} is {} but has a target", job.state);
        }
    }
    if job.state.has_group() {
        assert_eq!(job.timer.is_some(), settling && whole, "{id} is {} with a wrong timer", job.state);
        let bounds = job.spec.fewest()..=job.spec.most();
        assert!(bounds.contains(&target.replicas()), "{id} is to have {} replicas", target.replicas());
        assert!(job.usage.first_started.is_some(), "{id} has a group but never started");
    }
    assert_eq!(job.state.is_ended(), job.usage.ended.is_some(), "{id} and its usage disagree about its end");
    assert!(!job.state.is_ended() || !job.leaving.is_empty(), "{id} has ended and is gone, but was not retired");
    assert!(job.usage.retries <= job.spec.retries, "{id} was retried too often");
    let has_clock = job.spec.time_limit.is_some() && job.state.has_group();
    assert_eq!(job.deadline.is_some(), has_clock, "{id} is {} with a wrong deadline", job.state);
    assert!(job.waits_for.is_empty() || group.is_empty(), "{id} has GPUs but waits for other jobs");
    check_revisions(job);
}

fn check_revisions(job: &Job) {
    let id = job.id;
    assert!(job.revision_heard <= job.revision, "{id} listens to a revision that is still to come");
    let started = job.usage.first_started.is_some();
    assert_eq!(started, job.revision > Revision::default(), "{id} and its usage disagree about its start");
    let told: BTreeSet<Revision> = job.leaving.iter().map(|leaving| leaving.revision).collect();
    assert_eq!(told.len(), job.leaving.len(), "{id} has a revision twice on its way out");
    assert!(told.last().is_none_or(|&newest| newest <= job.revision), "{id} dismissed a revision yet to come");
    assert!(job.leaving.iter().all(|leaving| !leaving.allocation.is_empty()), "{id} dismissed nobody");
    for Leaving { allocation, held: HeldGpus { owned, shared }, .. } in &job.leaving {
        let known = owned.is_within(allocation) && shared.is_within(allocation);
        assert!(known && allocation.is_within(&owned.plus(shared)), "{id} leaves GPUs that it is not on");
    }
}

const fn only_gpus(replica: ReplicaResources) -> ReplicaResources {
    ReplicaResources { cpus: 0, memory: 0, ..replica }
}

/// What replicas need per node, over many jobs.
#[derive(Debug, Default)]
struct Tally(BTreeMap<NodeId, Needed>);

#[derive(Clone, Copy, Debug, Default)]
struct Needed {
    gpus: u32,
    cpus: u64,
    memory: u128,
}

impl Tally {
    fn add(&mut self, replica: ReplicaResources, allocation: &Allocation) {
        for (node, replicas) in allocation.iter() {
            let needed = self.0.entry(node).or_default();
            needed.gpus += replica.gpus_of(replicas);
            needed.cpus += replica.cpus_of(replicas);
            needed.memory += u128::from(replica.memory) * u128::from(replicas);
        }
    }

    fn take(&mut self, node: NodeId) -> Needed {
        self.0.remove(&node).unwrap_or_default()
    }
}
