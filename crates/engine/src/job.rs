use pollux_agent::{AgentReport, Tuning};
use pollux_job::{Dependency, Flexibility, JobId, JobSpec, Phase, PodsPer, Work};
use pollux_model::{Goodput, GpuType, NoiseStatistics};
use pollux_policy::{Allocation, EndedJob, JobView, NodeId, Oracle, Reason, ReplicaResources, Timestamp, TypeProfile};

use crate::gpu_types::GpuTypes;
use crate::type_knowledge::TypeKnowledge;
use crate::{JobState, JobUsage, ReportFault, Revision, StartHistory, StopReason};

/// Kinds of GPU that one report may speak of.
const KINDS_MAX: usize = 64;
/// More steps than any training has; above it a number is a mistake.
const STEPS_MAX: f64 = 1e15;
/// More samples per second than any job has; above it a number is a mistake.
const RATE_MAX: f64 = 1e12;
/// More CPUs and bytes than any node has, and so few that those of all replicas on a node add up to a number.
const CPUS_MAX: u32 = 100_000;
const MEMORY_MAX: u64 = 1 << 50;

pub(crate) static NOTHING: Allocation = Allocation::NONE;

/// A job as the cluster sees it.
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) id: JobId,
    pub(crate) spec: JobSpec,
    pub(crate) state: JobState,
    pub(crate) phase_since: Timestamp,
    /// The newest group; 0 before the first.
    pub(crate) revision: Revision,
    /// The oldest group whose words count: in a resize the old one is listened to until the new one trains.
    pub(crate) revision_heard: Revision,
    /// Replicas that were launched or kept, and not told to leave.
    pub(crate) group: Allocation,
    /// What the group is to become; it contains the group.
    pub(crate) target: Allocation,
    /// The job on whose GPUs group and target are; they lie within its own.
    pub(crate) guest_of: Option<JobId>,
    /// The job that is, or is to be, on GPUs of this one.
    pub(crate) guest: Option<JobId>,
    pub(crate) leaving: Vec<Leaving>,
    pub(crate) start_history: StartHistory,
    /// When the newest group was last told to change.
    pub(crate) commanded: Timestamp,
    /// When to look at the job again: the end of its backoff, or the limit of its settling.
    pub(crate) timer: Option<Timestamp>,
    /// Whether replicas of its group wait for something outside of the cluster.
    pub(crate) pending: bool,
    /// Whether part of its group is on a node that does not answer.
    pub(crate) stranded: bool,
    /// Failures because of machines since it last trained.
    pub(crate) machine_failures: u32,
    /// When its time limit is reached, if it goes on holding GPUs.
    pub(crate) deadline: Option<Timestamp>,
    /// Jobs that have to end before it.
    pub(crate) waits_for: Vec<Dependency>,
    pub(crate) usage: JobUsage,
    pub(crate) size_change: Option<SizeChange>,
    pub(crate) reason: Option<Reason>,
    pub(crate) report: Option<ReceivedReport>,
    /// Whether it runs without a word.
    pub(crate) silent: bool,
    /// Follows from the report, and what others know of types that it never ran on.
    pub(crate) profiles: Vec<TypeProfile>,
    /// What others of its application measured.
    pub(crate) application_profiles: Vec<TypeProfile>,
    /// Those of them that succeeded.
    pub(crate) application_ended: Vec<EndedJob>,
    /// Kinds of GPU that it may run on, of those that are known; any if it named none.
    pub(crate) gpu_types: Option<Vec<GpuType>>,
    pub(crate) remaining_samples: Option<f64>,
    /// Told by a simulator to a policy that needs it.
    pub(crate) oracle: Option<Oracle>,
}

/// A group was told to become smaller or larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeChange {
    /// When.
    pub at: Timestamp,
    /// Replicas before.
    pub from: u32,
    /// Replicas after; none if all were told to leave.
    pub to: u32,
}

/// Replicas that were told to leave and may still be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The revision of the command that told them.
    pub revision: Revision,
    /// Which ones.
    pub allocation: Allocation,
    /// What for.
    pub why: StopReason,
    /// The GPUs they are on.
    pub held: HeldGpus,
}

/// GPUs that replicas are on. Of those on one node that leave it is not told which do, so that both parts may count
/// one that is still there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldGpus {
    /// They are nobody else's.
    pub owned: Allocation,
    /// Another job owns them.
    pub shared: Allocation,
}

/// The newest report of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedReport {
    /// When it came.
    pub at: Timestamp,
    /// What it said.
    pub report: AgentReport,
}

impl Job {
    pub(crate) fn new(id: JobId, spec: JobSpec, now: Timestamp) -> Self {
        Self {
            id,
            spec,
            state: JobState::QUEUED,
            phase_since: now,
            revision: Revision::default(),
            revision_heard: Revision::default(),
            group: Allocation::NONE,
            target: Allocation::NONE,
            guest_of: None,
            guest: None,
            leaving: Vec::new(),
            start_history: StartHistory::since(now),
            commanded: now,
            timer: None,
            pending: false,
            stranded: false,
            machine_failures: 0,
            deadline: None,
            waits_for: Vec::new(),
            usage: JobUsage::new(now),
            size_change: None,
            reason: None,
            report: None,
            silent: false,
            profiles: Vec::new(),
            application_profiles: Vec::new(),
            application_ended: Vec::new(),
            gpu_types: None,
            remaining_samples: None,
            oracle: None,
        }
    }

    /// Its number.
    pub const fn id(&self) -> JobId {
        self.id
    }

    /// What its user asked for.
    pub const fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// Where it is in its life.
    pub const fn phase(&self) -> Phase {
        self.state.phase()
    }

    /// Where it is in its life, with all that belongs to it.
    pub const fn state(&self) -> &JobState {
        &self.state
    }

    /// Jobs that have to end before plans include it.
    pub fn waits_for(&self) -> &[Dependency] {
        &self.waits_for
    }

    /// Whether plans include it.
    pub const fn is_plannable(&self) -> bool {
        self.state.is_plannable() && self.waits_for.is_empty()
    }

    /// When that phase began.
    pub const fn phase_since(&self) -> Timestamp {
        self.phase_since
    }

    /// Its newest group; 0 before the first.
    pub const fn revision(&self) -> Revision {
        self.revision
    }

    /// Replicas that were launched or kept, and not told to leave.
    pub const fn group(&self) -> &Allocation {
        &self.group
    }

    /// What the group is to become: more than the group while additions wait for their GPUs.
    pub const fn target(&self) -> &Allocation {
        &self.target
    }

    /// The job whose GPUs it uses, or waits for, as a guest.
    pub const fn guest_of(&self) -> Option<JobId> {
        self.guest_of
    }

    /// The job that uses its GPUs, or waits for them, as a guest.
    pub const fn guest(&self) -> Option<JobId> {
        self.guest
    }

    /// Replicas that were told to leave and may still be there.
    pub fn leaving(&self) -> &[Leaving] {
        &self.leaving
    }

    /// What one of its replicas takes of its node.
    pub fn per_replica(&self) -> ReplicaResources {
        ReplicaResources {
            gpus: self.spec.gpus_per_replica.max(1),
            cpus: self.spec.cpus.unwrap_or(0).min(CPUS_MAX),
            memory: self.spec.memory.unwrap_or(0).min(MEMORY_MAX),
        }
    }

    /// Replicas that may be on a node, those on their way out included.
    pub(crate) fn replicas_on(&self, node: NodeId) -> u32 {
        let leaving = self.leaving.iter().map(|leaving| leaving.allocation.replicas_on(node));
        leaving.fold(self.group.replicas_on(node), u32::saturating_add)
    }

    /// GPUs on which a process of it may be.
    pub fn gpus_held(&self) -> u32 {
        let leaving = self.leaving.iter().map(|leaving| leaving.allocation.replicas());
        self.per_replica().gpus_of(leaving.fold(self.group.replicas(), u32::saturating_add))
    }

    /// Its usage, brought up to `now`.
    pub fn usage(&self, now: Timestamp) -> JobUsage {
        let mut usage = self.usage;
        let waits_for_gpus = matches!(self.state, JobState::Queued { .. }) && self.waits_for.is_empty();
        usage.accrue(now, self.gpus_held(), waits_for_gpus);
        usage
    }

    /// Why the last plan that included it gave it what it did.
    pub const fn reason(&self) -> Option<&Reason> {
        self.reason.as_ref()
    }

    /// The newest report of its agent.
    pub const fn report(&self) -> Option<&ReceivedReport> {
        self.report.as_ref()
    }

    /// The last time that its group was told to become smaller or larger.
    pub const fn size_change(&self) -> Option<SizeChange> {
        self.size_change
    }

    /// Whether replicas of its group wait for something outside of the cluster.
    pub const fn is_pending(&self) -> bool {
        self.pending
    }

    /// Failures because of machines since it last trained.
    pub const fn machine_failures(&self) -> u32 {
        self.machine_failures
    }

    /// Whether it runs and has never said anything, so that plans leave it alone.
    pub const fn is_silent(&self) -> bool {
        self.silent
    }

    /// Samples still to be worked off at full efficiency, where that can be known.
    pub const fn remaining_samples(&self) -> Option<f64> {
        self.remaining_samples
    }

    /// How long it has trained, and was to train, if it has reported.
    pub(crate) fn ended(&self) -> Option<EndedJob> {
        let report = &self.report.as_ref()?.report;
        Some(EndedJob {
            samples: report.progress.baseline_steps * f64::from(report.limits.batch_size_baseline()),
            samples_declared: self.spec.work.and_then(|work| declared_samples(work, report)),
        })
    }

    /// Whether what a revision says counts.
    pub(crate) fn hears(&self, revision: Revision) -> bool {
        self.revision > Revision::default() && (self.revision_heard..=self.revision).contains(&revision)
    }

    pub(crate) fn accrue(&mut self, now: Timestamp) {
        self.usage = self.usage(now);
    }

    pub(crate) fn enter(&mut self, state: JobState, now: Timestamp) {
        self.accrue(now);
        if matches!(state, JobState::Queued { .. }) && !matches!(self.state, JobState::Queued { .. }) {
            self.start_history.queued_since = now;
        }
        self.state = state;
        self.phase_since = now;
        self.pending = false;
    }

    /// Replicas that may be launched as soon as their GPUs are free. A whole group waits until the one before it is
    /// gone: a job never runs twice, and finds the state that the old group saved.
    pub(crate) fn addition(&self) -> Option<Allocation> {
        let may_launch = match self.state {
            JobState::Queued { .. } => self.leaving.is_empty(),
            JobState::Resizing { .. } => true,
            JobState::Starting
            | JobState::Running
            | JobState::Paused
            | JobState::Succeeded
            | JobState::Failed { .. }
            | JobState::Cancelled => false,
        };
        (may_launch && self.target != self.group).then(|| self.target.minus(&self.group))
    }

    /// What of its group stays as it is on the way to a target. Where all that it has on a node is one pod, another number
    /// there is another pod. Who shares GPUs is in none.
    pub(crate) fn kept(&self, target: &Allocation) -> Allocation {
        let common = self.group.common(target);
        match self.replaces_nodes() {
            true => {
                common.iter().filter(|&(node, _)| self.group.replicas_on(node) == target.replicas_on(node)).collect()
            }
            false => common,
        }
    }

    /// Whether another number of replicas on a node means that all of them there are replaced.
    pub(crate) fn replaces_nodes(&self) -> bool {
        let shares = self.guest.is_some() || self.guest_of.is_some();
        self.spec.pods_per == PodsPer::Node && !shares
    }

    /// Learns what the change cost that is over now. A launch counts until it is known how long the job pauses, which is all
    /// that a change in place costs. Where nodes are replaced both kinds come again, and count as they come: of a group that
    /// goes on without replicas that it could have kept, they are missed until they are back.
    pub(crate) fn measure_change(&mut self, pause_s: Option<f64>, now: Timestamp) {
        let launch_s = now.since_s(self.commanded);
        match (&self.state, pause_s) {
            (JobState::Resizing { survivors, .. }, Some(pause_s)) if self.replaces_nodes() => {
                let size = self.size_change.map_or(0, |change| change.from.min(change.to));
                let replaced = size.saturating_sub(survivors.replicas());
                let share = f64::from(replaced) / f64::from(self.target.replicas().max(1));
                self.usage.measure_restart(pause_s + share * launch_s);
            }
            (_, Some(pause_s)) if self.replaces_nodes() => self.usage.measure_restart(pause_s),
            (_, Some(pause_s)) => self.usage.measure_pause(pause_s),
            (_, None) => self.usage.measure_launch(launch_s),
        }
    }

    /// Notes replicas of the newest revision as on their way out.
    pub(crate) fn leave(&mut self, allocation: &Allocation, why: StopReason) {
        if allocation.is_empty() {
            return;
        }
        let revision = self.revision;
        let idx = self.leaving.iter().position(|leaving| leaving.revision == revision).unwrap_or_else(|| {
            let (allocation, held) = (Allocation::NONE, HeldGpus::default());
            self.leaving.push(Leaving { revision, allocation, why, held });
            self.leaving.len() - 1
        });
        let leaving = &mut self.leaving[idx];
        leaving.allocation = leaving.allocation.plus(allocation);
        leaving.why = why;
        let held = if self.guest_of.is_none() { &mut leaving.held.owned } else { &mut leaving.held.shared };
        *held = held.plus(allocation);
    }

    /// Takes replicas off the list of those on their way out; returns what was on it, and the GPUs that are free now.
    pub(crate) fn release(&mut self, revision: Revision, allocation: &Allocation) -> (Allocation, HeldGpus) {
        let Some(idx) = self.leaving.iter().position(|leaving| leaving.revision == revision) else {
            return (Allocation::NONE, HeldGpus::default());
        };
        let leaving = &mut self.leaving[idx];
        let released = leaving.allocation.common(allocation);
        leaving.allocation = leaving.allocation.minus(&released);
        let left = HeldGpus {
            owned: leaving.held.owned.common(&leaving.allocation),
            shared: leaving.held.shared.common(&leaving.allocation),
        };
        let before = std::mem::replace(&mut leaving.held, left);
        let freed = HeldGpus {
            owned: before.owned.minus(&leaving.held.owned),
            shared: before.shared.minus(&leaving.held.shared),
        };
        if leaving.allocation.is_empty() {
            self.leaving.remove(idx);
        }
        (released, freed)
    }

    /// Takes all that is on a lost node off the list of those on their way out.
    pub(crate) fn forget_leaving(&mut self, node: NodeId) {
        for leaving in &mut self.leaving {
            leaving.allocation = leaving.allocation.without(node);
            leaving.held.owned = leaving.held.owned.without(node);
            leaving.held.shared = leaving.held.shared.without(node);
        }
        self.leaving.retain(|leaving| !leaving.allocation.is_empty());
    }

    /// Whether plans must leave its group alone. One that does not train yet is: jobs that start slowly would otherwise
    /// be moved for ever. One that is silent may know nothing of us, and lose all it has done. One on a node that does
    /// not answer could not be told anything.
    ///
    /// One that failed to start before is, until it has trained for a while: nobody makes room for what may fail again.
    fn is_pinned(&self, now: Timestamp) -> bool {
        let settling = matches!(self.state, JobState::Starting | JobState::Resizing { .. });
        let on_trial = self.start_history.failed_starts > 0 && !self.has_proven_itself(now);
        let is_kept = settling || on_trial || self.silent || self.stranded;
        self.state.has_group() && (is_kept || self.spec.flexibility != Flexibility::Elastic)
    }

    /// Whether its group has trained for a while.
    fn has_proven_itself(&self, now: Timestamp) -> bool {
        self.state != JobState::Starting && self.start_history.is_proven(now)
    }

    /// Whether it waits and may have only what nobody uses.
    pub(crate) fn yields(&self, now: Timestamp) -> bool {
        !self.state.has_group() && now < self.start_history.yields_until
    }

    /// A group has failed.
    pub(crate) fn note_failure(&mut self, now: Timestamp) {
        if self.has_proven_itself(now) {
            self.start_history.forgive();
        } else {
            self.start_history.note_failed_start(now);
        }
    }

    /// Takes a checked report in.
    pub(crate) fn learn(&mut self, at: Timestamp, report: AgentReport, types: &GpuTypes, knowledge: &TypeKnowledge) {
        self.remaining_samples = self.spec.work.and_then(|work| remaining_samples(work, &report));
        self.report = Some(ReceivedReport { at, report });
        self.learn_types(types, knowledge);
    }

    /// What its report says of the types of GPU that are known, and what others know of the types that it does not. What it
    /// says of types that are not known is kept until they are.
    pub(crate) fn learn_types(&mut self, types: &GpuTypes, knowledge: &TypeKnowledge) {
        let application = self.spec.application.as_deref();
        self.gpu_types = types.numbers(&self.spec.gpu_types);
        self.application_profiles.clear();
        self.application_profiles.extend(knowledge.application(application));
        self.application_ended.clear();
        self.application_ended.extend(knowledge.ended(application));
        self.profiles.clear();
        if let Some(received) = &self.report {
            self.profiles.extend(measured(&received.report, types));
        }
        // Where types differ that made completion times of published workloads worse, by up to 4%.
        if types.names().len() <= 1 {
            knowledge.lend(application, &mut self.profiles, self.gpu_types.as_deref());
        }
        if self.report.is_none() {
            self.remaining_samples = self.samples_expected(knowledge.epoch_samples(application));
            if self.remaining_samples.is_none() && self.application_ended.is_empty() {
                // Who may last long is measured before it is given much.
                self.profiles.iter_mut().for_each(|profile| profile.replicas_profiled = 0);
            }
        }
        knowledge.complete(application, &mut self.profiles, types.names().len(), self.gpu_types.as_deref());
    }

    /// Samples of the declared work before it has reported, if an epoch is as long as for others of its application.
    fn samples_expected(&self, epoch_samples: Option<u64>) -> Option<f64> {
        let limits = self.profiles.first()?.goodput.limits;
        Some(match self.spec.work? {
            Work::Epochs(epochs) => f64::from(epochs) * epoch_samples? as f64,
            Work::BaselineSteps(steps) => steps as f64 * f64::from(limits.batch_size_baseline()),
        })
    }

    /// What a policy may know of it, and of `guest` on its GPUs.
    pub(crate) fn view(&self, guest: Option<&Self>, now: Timestamp, restart_cost_default_s: f64) -> JobView<'_> {
        let usage = self.usage(now);
        let report = self.report.as_ref().map(|received| &received.report);
        let flexibility = match self.spec.flexibility {
            // A guest that must stay where it is needs its host there.
            Flexibility::Elastic if self.is_pinned(now) || guest.is_some_and(|guest| guest.is_pinned(now)) => {
                Flexibility::NonPreemptible
            }
            flexibility @ (Flexibility::Elastic | Flexibility::NonPreemptible | Flexibility::Rigid) => flexibility,
        };
        let ReplicaResources { gpus: gpus_per_replica, cpus, memory } = self.per_replica();
        JobView {
            id: self.id,
            eligible_since: self.start_history.eligible_since,
            queued_since: self.start_history.queued_since,
            running_since: self.start_history.launched.filter(|_| self.state.has_group()),
            attained_gpu_s: usage.attained_gpu_s(),
            executed_s: usage.executed_s(),
            restarts: usage.restarts,
            restart_cost_s: usage.restart_cost_s.unwrap_or(restart_cost_default_s),
            // What waits for its GPUs has not cost anything yet and may be planned anew.
            allocation: if self.state.has_group() { &self.target } else { &NOTHING },
            guest_of: self.guest_of.filter(|_| self.state.has_group()),
            replicas_requested: self.spec.replicas,
            replicas_min: self.spec.replicas_min,
            replicas_max: self.spec.replicas_limit(),
            gpus_per_replica,
            cpus,
            memory,
            gpu_types: self.gpu_types.as_deref(),
            flexibility,
            batch_size: self.spec.batch_size,
            owner: &self.spec.owner,
            priority: self.spec.priority,
            application: self.spec.application.as_deref(),
            profiles: &self.profiles,
            application_profiles: &self.application_profiles,
            application_ended: &self.application_ended,
            remaining_samples: self.remaining_samples,
            baseline_steps: report.map_or(0.0, |report| report.progress.baseline_steps),
            epoch_steps: report.and_then(epoch_steps),
            samples_per_s: report.and_then(|report| report.samples_per_s),
            loss: report.and_then(|report| report.loss),
            oracle: self.oracle.as_ref(),
        }
    }
}

/// What a report says of the types of GPU that are known, ordered by type.
fn measured(report: &AgentReport, types: &GpuTypes) -> Vec<TypeProfile> {
    let noise = report.noise.unwrap_or(NoiseStatistics::NOISELESS);
    let known = report.types.iter().filter_map(|learned| Some((types.number(&learned.gpu_type)?, learned)));
    let profiles = known.map(|(gpu_type, learned)| TypeProfile {
        gpu_type,
        goodput: Goodput {
            throughput: learned.model,
            noise,
            limits: match learned.local_batch_max {
                Some(local_batch_max) => report.limits.with_local_batch_max(local_batch_max),
                None => report.limits,
            },
        },
        replicas_profiled: learned.replicas_profiled,
        is_estimated: false,
    });
    let mut profiles: Vec<TypeProfile> = profiles.collect();
    profiles.sort_by_key(|profile| profile.gpu_type);
    profiles
}

/// Refuses a report with values that no agent would send.
pub(crate) fn check_report(report: &AgentReport) -> Result<(), ReportFault> {
    let baseline_steps = report.progress.baseline_steps;
    if !(0.0..=STEPS_MAX).contains(&baseline_steps) {
        return Err(ReportFault::Progress { baseline_steps });
    }
    if let Some(samples_per_s) = report.samples_per_s.filter(|rate| !(*rate > 0.0 && *rate <= RATE_MAX)) {
        return Err(ReportFault::Rate { samples_per_s });
    }
    let factor = report.learning_rate_factor;
    if !factor.is_finite() || factor < 0.0 {
        return Err(ReportFault::LearningRate { factor });
    }
    if let Some(Tuning { local_batch, accumulation_steps }) = report.tuning {
        let samples = u64::from(local_batch) * (u64::from(accumulation_steps) + 1);
        if !(1..=u64::from(u32::MAX)).contains(&samples) {
            return Err(ReportFault::Tuning { local_batch, accumulation_steps });
        }
    }
    let kinds = report.types.len();
    if kinds > KINDS_MAX || !report.types.is_sorted_by(|a, b| a.gpu_type < b.gpu_type) {
        return Err(ReportFault::Kinds { kinds, limit: KINDS_MAX });
    }
    let local_batch_min = report.limits.local_batch_min();
    for learned in &report.types {
        if let Some(local_batch_max) = learned.local_batch_max.filter(|&most| most < local_batch_min) {
            return Err(ReportFault::Memory { gpu_type: learned.gpu_type.clone(), local_batch_max, local_batch_min });
        }
    }
    match report.types.iter().find(|learned| learned.model.params().check().is_err()) {
        Some(learned) => Err(ReportFault::Model { gpu_type: learned.gpu_type.clone() }),
        None => Ok(()),
    }
}

fn epoch_steps(report: &AgentReport) -> Option<f64> {
    let samples = report.epoch_samples.filter(|&samples| samples > 0)?;
    Some(samples as f64 / f64::from(report.limits.batch_size_baseline()))
}

/// Samples of the declared work, at full efficiency.
pub fn declared_samples(work: Work, report: &AgentReport) -> Option<f64> {
    let batch_size_baseline = f64::from(report.limits.batch_size_baseline());
    Some(match work {
        Work::Epochs(epochs) => f64::from(epochs) * epoch_steps(report)? * batch_size_baseline,
        Work::BaselineSteps(steps) => steps as f64 * batch_size_baseline,
    })
}

fn remaining_samples(work: Work, report: &AgentReport) -> Option<f64> {
    let done = report.progress.baseline_steps * f64::from(report.limits.batch_size_baseline());
    Some((declared_samples(work, report)? - done).max(0.0))
}
