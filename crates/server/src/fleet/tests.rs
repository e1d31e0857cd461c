use super::*;

const JOB: JobId = JobId(7);

fn on(entries: &[(u32, u32)]) -> Allocation {
    entries.iter().map(|&(node, replicas)| (NodeId(node), replicas)).collect()
}

fn ids(numbers: &[u64]) -> Vec<ReplicaId> {
    numbers.iter().copied().map(ReplicaId).collect()
}

fn apply(fleet: &mut Fleet, command: &Command) -> Effects {
    apply_to_pods(fleet, command, PodsPer::Replica)
}

fn apply_to_pods(fleet: &mut Fleet, command: &Command, pods_per: PodsPer) -> Effects {
    let mut out = Effects::default();
    fleet.apply(command, pods_per, &mut out);
    out
}

fn launch(revision: u64, allocation: &Allocation) -> Command {
    let (revision, allocation) = (Revision(revision), allocation.clone());
    Command::Launch { job: JOB, revision, allocation, guest_of: None }
}

fn resize(revision: u64, remove: &[(u32, u32)], add: &[(u32, u32)]) -> Command {
    let (remove, add) = (on(remove), on(add));
    Command::Resize { job: JOB, revision: Revision(revision), keep: on(&[(0, 1)]), remove, add }
}

fn stop(revision: u64, allocation: &[(u32, u32)], why: StopReason) -> Command {
    Command::Stop { job: JOB, revision: Revision(revision), allocation: on(allocation), why }
}

fn release(revision: u64, node: u32) -> Event {
    Event::ReplicasReleased { job: JOB, revision: Revision(revision), allocation: on(&[(node, 1)]) }
}

fn exit(fleet: &mut Fleet, id: u64, code: i32) -> Vec<Event> {
    let mut out = Effects::default();
    fleet.ended(ReplicaId(id), Ending::Exited(Exit::Code(code)), Timestamp(0), &mut out);
    out.events
}

/// A group of two on node 0 and one on node 1 that trains.
fn trained() -> Fleet {
    let mut fleet = Fleet::default();
    apply(&mut fleet, &launch(1, &on(&[(0, 2), (1, 1)])));
    fleet.settle(JOB);
    fleet
}

/// What a restart leaves of a fleet.
fn restarted(fleet: &Fleet) -> Fleet {
    let replicas = fleet.replicas.iter().map(|(&id, replica)| replica.row(id)).collect::<Vec<_>>();
    let groups = fleet.groups.iter().map(|(&job, group)| (job, group.into()));
    Fleet::recovered(&replicas, groups.collect(), fleet.last)
}

#[test]
fn a_resize_that_removes_and_adds_has_two_memberships() {
    let mut fleet = trained();
    assert_eq!((fleet.groups[&JOB].generation, &fleet.groups[&JOB].members), (1, &ids(&[1, 2, 3])));
    let out = apply(&mut fleet, &resize(2, &[(0, 1)], &[(2, 1)]));
    assert_eq!(out.stop, ids(&[2]), "the high rank leaves");
    let group = &fleet.groups[&JOB];
    assert_eq!((group.generation, &group.members, group.awaits_additions), (2, &ids(&[1, 3]), true));
    assert_eq!(group.readiness(2, false), Readiness::Partial);
    assert_eq!(
        [0, 1, 2, 3].map(|generation| group.revision_of(generation).map(|it| it.0)),
        [None, Some(1), Some(2), None]
    );

    let out = apply(&mut fleet, &launch(2, &on(&[(2, 1)])));
    assert_eq!(out.start, ids(&[4]));
    let group = &fleet.groups[&JOB];
    assert_eq!((group.generation, &group.members), (3, &ids(&[1, 3, 4])));
    assert_eq!([1, 2, 3].map(|generation| group.revision_of(generation).map(|it| it.0)), [Some(1), Some(2), Some(2)]);
    assert_eq!(
        [2, 3].map(|generation| group.readiness(generation, false)),
        [Readiness::Stale, Readiness::Complete(Revision(2))]
    );
    fleet.settle(JOB);
    assert_eq!([1, 2, 3].map(|generation| fleet.groups[&JOB].revision_of(generation).is_some()), [false, false, true]);
    assert_eq!(exit(&mut fleet, 2, 143), [release(2, 0)]);
}

#[test]
fn a_resize_that_only_adds_is_announced_when_the_additions_come() {
    let mut fleet = trained();
    apply(&mut fleet, &resize(2, &[], &[(1, 1)]));
    assert_eq!(fleet.groups[&JOB].generation, 1);
    assert_eq!(fleet.groups[&JOB].readiness(1, false), Readiness::Partial);
    apply(&mut fleet, &launch(2, &on(&[(1, 1)])));
    assert_eq!((fleet.groups[&JOB].generation, &fleet.groups[&JOB].members), (2, &ids(&[1, 2, 3, 4])));
}

#[test]
fn what_was_carried_out_is_not_carried_out_again_after_a_restart() {
    let mut fleet = trained();
    apply(&mut fleet, &resize(2, &[(0, 1)], &[(2, 1)]));
    apply(&mut fleet, &launch(2, &on(&[(2, 1)])));
    let mut fleet = restarted(&fleet);
    let before = fleet.groups.clone();
    let out = apply(&mut fleet, &stop(2, &[(0, 1)], StopReason::Resized));
    assert_eq!((out.stop, out.events), (ids(&[2]), vec![]), "told again, because it may not have heard");
    assert_eq!(apply(&mut fleet, &resize(2, &[], &[(2, 1)])), Effects::default());
    assert_eq!(apply(&mut fleet, &launch(2, &on(&[(2, 1)]))), Effects::default());
    assert_eq!(fleet.groups, before);
}

#[test]
fn what_was_decided_and_not_carried_out_is_carried_out_after_a_restart() {
    let mut fleet = restarted(&trained());
    let out = apply(&mut fleet, &stop(2, &[(0, 1)], StopReason::Resized));
    assert_eq!(out.stop, ids(&[2]));
    apply(&mut fleet, &resize(2, &[], &[(2, 1)]));
    assert_eq!((fleet.groups[&JOB].generation, &fleet.groups[&JOB].members), (2, &ids(&[1, 3])));
    assert_eq!(apply(&mut fleet, &launch(2, &on(&[(2, 1)]))).start, ids(&[4]));
}

#[test]
fn replicas_that_a_stop_does_not_find_are_released_at_once() {
    let mut fleet = trained();
    assert_eq!(exit(&mut fleet, 3, 1).len(), 1, "a failure, of which the engine knows");
    let out = apply(&mut fleet, &stop(1, &[(0, 2), (1, 2)], StopReason::Failed));
    assert_eq!(out.stop, ids(&[2, 1]));
    assert_eq!(out.events, [release(1, 1), release(1, 1)], "one has ended, one never was");
    assert!(fleet.groups[&JOB].stopping && fleet.groups[&JOB].members.is_empty());
    assert_eq!(exit(&mut fleet, 1, 0), [release(1, 0)], "whatever its code, it was told to leave");
    assert_eq!(exit(&mut fleet, 1, 0), [], "told twice");
}

#[test]
fn the_leader_decides_whether_a_job_has_succeeded() {
    let (job, revision) = (JOB, Revision(1));
    let mut fleet = trained();
    assert_eq!(exit(&mut fleet, 2, 0), []);
    assert_eq!(exit(&mut fleet, 1, 0), [], "the others may take their time");
    assert_eq!(fleet.finishing().collect::<Vec<_>>(), [(JOB, Timestamp(0))]);
    assert_eq!(exit(&mut fleet, 3, 75), [Event::JobSucceeded { job, revision }], "however they end");
    let mut fleet = trained();
    let kind = FailureKind::Retryable;
    assert_eq!(exit(&mut fleet, 3, 75), [Event::ReplicaFailed { job, revision, node: NodeId(1), kind }]);
}

#[test]
fn a_leader_that_was_done_before_it_was_told_to_leave_has_succeeded() {
    let (job, revision) = (JOB, Revision(1));
    for why in [StopReason::Paused, StopReason::Preempted, StopReason::Moved] {
        let mut fleet = trained();
        apply(&mut fleet, &stop(1, &[(0, 2), (1, 1)], why));
        let mut fleet = restarted(&fleet);
        apply(&mut fleet, &stop(1, &[(0, 2), (1, 1)], why));
        assert_eq!(exit(&mut fleet, 2, 0), [release(1, 0)], "not the leader");
        assert_eq!(exit(&mut fleet, 1, 0), [Event::JobSucceeded { job, revision }, release(1, 0)]);
    }
    let mut fleet = trained();
    apply(&mut fleet, &stop(1, &[(0, 2), (1, 1)], StopReason::Paused));
    assert_eq!(exit(&mut fleet, 1, 143), [release(1, 0)]);
}

#[test]
fn a_group_that_starts_again_has_a_larger_number_and_nobody_of_the_old_one_is_heard() {
    let mut fleet = trained();
    apply(&mut fleet, &stop(1, &[(0, 2), (1, 1)], StopReason::Preempted));
    for id in 1..=3 {
        exit(&mut fleet, id, 143);
    }
    assert_eq!(fleet.groups[&JOB].past, ids(&[1, 2, 3]));
    apply(&mut fleet, &launch(2, &on(&[(3, 1)])));
    let group = &fleet.groups[&JOB];
    assert_eq!((group.generation, &group.members, group.stopping), (2, &ids(&[4]), false));
    assert_eq!([1, 2].map(|generation| group.revision_of(generation)), [None, Some(Revision(2))]);
}

#[test]
fn survivors_of_a_lost_node_get_a_new_membership() {
    let mut fleet = trained();
    let mut out = Effects::default();
    fleet.lose_node(NodeId(0), &mut out);
    assert_eq!(out.gone, ids(&[1, 2]));
    let out = apply(&mut restarted(&fleet), &resize(2, &[], &[]));
    assert_eq!(out.regrouped, BTreeSet::from([JOB]));
    apply(&mut fleet, &resize(2, &[], &[]));
    assert_eq!((fleet.groups[&JOB].generation, &fleet.groups[&JOB].members), (2, &ids(&[3])));
}

#[test]
fn guests_come_to_gpus_without_one_and_their_hosts_stay_longest() {
    let mut fleet = trained();
    let guest = |job| Command::Launch {
        job: JobId(job),
        revision: Revision(1),
        allocation: on(&[(0, 1)]),
        guest_of: Some(JOB),
    };
    apply(&mut fleet, &guest(8));
    assert_eq!(fleet.replicas[&ReplicaId(4)].shares_with, Some(ReplicaId(1)));
    apply(&mut fleet, &guest(9));
    assert_eq!(fleet.replicas[&ReplicaId(5)].shares_with, Some(ReplicaId(2)));
    fleet.replicas.remove(&ReplicaId(4));
    assert_eq!(apply(&mut fleet, &resize(2, &[(0, 1)], &[])).stop, ids(&[1]), "nobody is beside it any more");
}

#[test]
fn a_group_meets_where_its_leader_says_until_it_changes() {
    let mut fleet = Fleet::default();
    apply(&mut fleet, &launch(1, &on(&[(0, 2)])));
    let place = || ("10.0.0.7".to_owned(), 4711);
    assert!(!fleet.publish(JOB, 2, place()) && !fleet.publish(JobId(9), 1, place()));
    assert_eq!(fleet.groups[&JOB].rendezvous, None);
    assert!(fleet.publish(JOB, 1, place()));
    assert_eq!(restarted(&fleet).groups[&JOB].rendezvous, Some(place()), "it survives a restart");
    apply(&mut fleet, &resize(2, &[(0, 1)], &[]));
    assert_eq!(fleet.groups[&JOB].rendezvous, None);
    assert!(!fleet.publish(JOB, 1, place()), "that group is over");
}

#[test]
fn only_a_whole_group_that_runs_can_be_silent() {
    let mut fleet = Fleet::default();
    apply(&mut fleet, &launch(1, &on(&[(0, 2)])));
    fleet.started(ReplicaId(1), Timestamp(5));
    assert_eq!(fleet.silent().count(), 0);
    fleet.started(ReplicaId(2), Timestamp(9));
    assert_eq!(fleet.silent().collect::<Vec<_>>(), [(JOB, Timestamp(9))]);
    fleet.has_spoken(JOB);
    fleet.started(ReplicaId(2), Timestamp(10));
    assert_eq!(fleet.silent().count(), 0);
}

#[test]
fn what_comes_to_a_node_together_is_a_bundle_and_its_gpus_are_free_when_all_of_it_has_ended() {
    let mut fleet = Fleet::default();
    let out = apply_to_pods(&mut fleet, &launch(1, &on(&[(0, 2), (1, 1)])), PodsPer::Node);
    assert_eq!(out.start, ids(&[1, 2, 3]));
    assert_eq!([1, 2, 3].map(|id| fleet.bundle(ReplicaId(id))), [ids(&[1, 2]), ids(&[1, 2]), ids(&[3])]);
    fleet.settle(JOB);
    apply(&mut fleet, &resize(2, &[], &[(2, 2)]));
    apply_to_pods(&mut fleet, &launch(2, &on(&[(2, 2)])), PodsPer::Node);
    assert_eq!(fleet.bundle(ReplicaId(5)), ids(&[4, 5]));
    // One ends by itself, and is not the first to be told to leave.
    assert_eq!(exit(&mut fleet, 2, 1).len(), 1, "its failure is told at once");
    let mut fleet = restarted(&fleet);
    assert_eq!(fleet.bundle(ReplicaId(2)), ids(&[1, 2]), "a restart keeps it");
    exit(&mut fleet, 2, 1);
    let out = apply(&mut fleet, &stop(2, &[(0, 2), (1, 1), (2, 2)], StopReason::Failed));
    assert_eq!((out.stop, out.events, out.gone), (ids(&[1, 3, 5, 4]), vec![], vec![]));
    assert_eq!(exit(&mut fleet, 3, 143), [release(2, 1)]);
    assert_eq!(exit(&mut fleet, 1, 143), [release(2, 0), release(2, 0)]);
    assert_eq!(exit(&mut fleet, 4, 143), []);
    assert_eq!(exit(&mut fleet, 4, 143), [], "told again");
    let mut out = Effects::default();
    fleet.lose_node(NodeId(2), &mut out);
    assert_eq!((out.gone, fleet.replicas.len()), (ids(&[4, 5]), 0));
}
