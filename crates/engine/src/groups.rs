//! How groups of replicas come, change and go. GPUs are given only when those who had them are gone, and a guest comes
//! only when its host is there.

use std::collections::BTreeSet;

use pollux_policy::{Allocation, JobId};

use crate::{Command, Engine, Job, JobState, Node, Refusal, ResizeCause, Revision, SizeChange, StopReason};

impl Engine {
    /// Tells all that a job has to leave, drops what was planned for it, and goes to `state`.
    pub(crate) fn stop_group(&mut self, id: JobId, state: JobState, why: StopReason, out: &mut Vec<Command>) {
        let job = self.jobs.get_mut(&id).expect("the caller has seen it");
        job.enter(state, self.now);
        self.nodes.forget(id, &job.target);
        job.target = Allocation::NONE;
        let allocation = std::mem::take(&mut job.group);
        job.stranded = false;
        let guest = job.guest;
        if !allocation.is_empty() {
            job.size_change = Some(SizeChange { at: self.now, from: allocation.replicas(), to: 0 });
            job.leave(&allocation, why);
            if job.guest_of.is_some() {
                self.nodes.add_departing(job.per_replica(), &allocation);
            }
            out.push(Command::Stop { job: id, revision: job.revision, allocation, why });
        }
        self.leave_host(id);
        if let Some(guest) = guest {
            if self.jobs[&guest].state.has_group() {
                self.promote(guest);
                // What it waited to share may be free elsewhere on the node, for itself.
                self.launch_if_free(guest, out);
            } else {
                self.aim(guest, Allocation::NONE, None);
            }
        }
        self.set_timer(id, None);
        self.set_deadline(id);
    }

    /// Gives a job without a group something to wait for, or nothing.
    pub(crate) fn aim(&mut self, id: JobId, target: Allocation, guest_of: Option<JobId>) {
        self.leave_host(id);
        let job = self.jobs.get_mut(&id).expect("the caller has seen it");
        self.nodes.forget(id, &job.target);
        self.nodes.expect(id, &target);
        (job.target, job.guest_of) = (target, guest_of);
        let guest = job.guest;
        if let Some(host) = guest_of.and_then(|host| self.jobs.get_mut(&host)) {
            host.guest = Some(id);
        }
        // Who was to come with it waits for nothing if it goes elsewhere.
        if let Some(guest) = guest.filter(|guest| !self.jobs[guest].target.is_within(&self.jobs[&id].target)) {
            self.aim(guest, Allocation::NONE, None);
        }
    }

    /// The host of a group goes: the group has its GPUs for itself. What the host still has there is in the way of the
    /// next guest, as a guest that leaves would be.
    pub(crate) fn promote(&mut self, id: JobId) {
        let Some(host) = self.jobs[&id].guest_of else { return };
        self.leave_host(id);
        let group = self.jobs[&id].group.clone();
        let host = self.jobs.get_mut(&host).expect("a host is in the table");
        let revision = host.revision;
        if let Some(leaving) = host.leaving.iter_mut().find(|leaving| leaving.revision == revision) {
            let beside = leaving.held.owned.common(&group);
            leaving.held.owned = leaving.held.owned.minus(&beside);
            leaving.held.shared = leaving.held.shared.plus(&beside);
            self.nodes.add_departing(host.per_replica(), &beside);
        }
    }

    fn leave_host(&mut self, id: JobId) {
        let host = self.jobs.get_mut(&id).and_then(|job| job.guest_of.take());
        if let Some(host) = host.and_then(|host| self.jobs.get_mut(&host)).filter(|host| host.guest == Some(id)) {
            host.guest = None;
        }
    }

    /// Announces a new revision that keeps what it can of the old one.
    pub(crate) fn resize(&mut self, id: JobId, target: Allocation, cause: ResizeCause, out: &mut Vec<Command>) {
        let job = self.jobs.get_mut(&id).expect("the caller has seen it");
        let keep = job.kept(&target);
        let remove = job.group.minus(&keep);
        let add = target.minus(&keep);
        assert!(!keep.is_empty(), "{id} is resized without a survivor");
        job.size_change = Some(SizeChange { at: self.now, from: job.group.replicas(), to: target.replicas() });
        job.enter(JobState::Resizing { survivors: keep.clone(), cause }, self.now);
        job.usage.restarted();
        job.commanded = self.now;
        job.revision = job.revision.next();
        job.leave(&remove, StopReason::Resized);
        if job.guest_of.is_some() {
            self.nodes.add_departing(job.per_replica(), &remove);
        }
        job.group = keep.clone();
        self.nodes.expect(id, &add);
        job.target = target;
        out.push(Command::Resize { job: id, revision: job.revision, keep, remove, add: add.clone() });
        // Waiting for the GPUs of others is not the job's fault: the clock starts with the last addition.
        let limit = add.is_empty().then(|| self.now.after_s(self.settings.settle_timeout_s));
        self.set_timer(id, limit);
    }

    /// Launches what a job waits for if all of it is free.
    pub(crate) fn launch_if_free(&mut self, id: JobId, out: &mut Vec<Command>) {
        let Some(addition) = self.jobs.get(&id).and_then(|job| self.launchable(job)) else { return };
        let job = self.jobs.get_mut(&id).expect("it was just there");
        job.accrue(self.now);
        self.nodes.forget(id, &addition);
        let replica = job.per_replica();
        self.nodes.hold(if job.guest_of.is_some() { replica.as_guest() } else { replica }, &addition);
        job.group = job.target.clone();
        job.commanded = self.now;
        job.pending = false;
        if matches!(job.state, JobState::Queued { .. }) {
            job.revision = job.revision.next();
            job.revision_heard = job.revision;
            let is_first = job.usage.first_started.is_none();
            let change = SizeChange { at: self.now, from: 0, to: job.group.replicas() };
            job.size_change = (!is_first).then_some(change);
            job.usage.started(self.now);
            job.start_history.launched = Some(self.now);
            job.enter(JobState::Starting, self.now);
        }
        let (revision, guest_of, guest) = (job.revision, job.guest_of, job.guest);
        out.push(Command::Launch { job: id, revision, allocation: addition, guest_of });
        self.set_timer(id, Some(self.now.after_s(self.settings.settle_timeout_s)));
        self.set_deadline(id);
        if let Some(guest) = guest {
            self.launch_if_free(guest, out);
        }
    }

    /// What a job waits for, if all of it is free.
    pub(crate) fn launchable(&self, job: &Job) -> Option<Allocation> {
        let addition = job.addition()?;
        if self.nodes.refuse(&addition) {
            return None;
        }
        let free = match job.guest_of {
            None => self.nodes.have_room(job.per_replica(), &addition),
            Some(host) => {
                let there = self.jobs.get(&host).is_some_and(|host| job.target.is_within(&host.group));
                there && self.nodes.have_room_for_guests(job.per_replica(), &addition)
            }
        };
        free.then_some(addition)
    }

    pub(crate) fn released(
        &mut self,
        id: JobId,
        revision: Revision,
        allocation: &Allocation,
        out: &mut Vec<Command>,
    ) -> Result<(), Refusal> {
        let unknown = self.last_job.is_none_or(|last| id > last);
        let job = self.jobs.get_mut(&id);
        let job = job.ok_or(if unknown { Refusal::UnknownJob { job: id } } else { Refusal::EndedJob { job: id } })?;
        job.accrue(self.now);
        let (released, seats) = job.release(revision, allocation);
        self.nodes.release(job.per_replica(), &released, &seats);
        self.retire(id);

        let on_nodes = released.iter().filter_map(|(node, _)| self.nodes.get(node));
        let mut waiting: BTreeSet<JobId> = on_nodes.flat_map(Node::waiting).copied().collect();
        waiting.insert(id);
        self.nodes.remove_emptied(released.iter().map(|(node, _)| node));
        for id in waiting {
            self.launch_if_free(id, out);
        }

        let excess = allocation.minus(&released);
        if !excess.is_empty() {
            return Err(Refusal::NotLeaving { job: id, revision, allocation: excess });
        }
        Ok(())
    }

    /// Everything that was commanded and not confirmed yet, for a driver that starts again and does not know what it
    /// had done of it. Replicas to stop that are gone already are to be told as released, replicas to launch that are
    /// there already are to be left alone, a group that trains is to be told as ready.
    pub fn outstanding(&self, out: &mut Vec<Command>) {
        for job in self.jobs.values() {
            out.extend(job.leaving.iter().map(|leaving| Command::Stop {
                job: job.id,
                revision: leaving.revision,
                allocation: leaving.allocation.clone(),
                why: leaving.why,
            }));
        }
        for job in self.jobs.values() {
            let newcomers = match &job.state {
                JobState::Starting => job.group.clone(),
                JobState::Resizing { survivors, .. } => {
                    out.push(Command::Resize {
                        job: job.id,
                        revision: job.revision,
                        keep: survivors.clone(),
                        remove: Allocation::NONE,
                        add: job.target.minus(survivors),
                    });
                    job.group.minus(survivors)
                }
                JobState::Queued { .. }
                | JobState::Running
                | JobState::Paused
                | JobState::Succeeded
                | JobState::Failed { .. }
                | JobState::Cancelled => continue,
            };
            if !newcomers.is_empty() {
                let (revision, guest_of) = (job.revision, job.guest_of);
                out.push(Command::Launch { job: job.id, revision, allocation: newcomers, guest_of });
            }
        }
    }
}
