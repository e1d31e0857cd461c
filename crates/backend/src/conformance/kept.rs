//! What is kept of replicas and jobs: logs and checkpoints.

use std::time::{Duration, SystemTime};

use pollux_policy::JobId;

use super::Trial;
use super::trial::wait_for_answer;
use crate::{Epoch, Exit, LogStart, ReplicaId, SavedCheckpoints};

/// Positions count bytes, whatever the size of the pieces.
pub fn a_log_is_read_in_pieces(trial: &mut Trial) {
    let replica = trial.start("seq 1000 1999");
    assert_eq!(trial.exit_of(replica), Exit::Code(0));
    let expected: String = (1_000..2_000).map(|number| format!("{number}\n")).collect();
    for bytes_max in [7, 4_096, 1 << 20] {
        let (mut text, mut at) = (Vec::new(), 0);
        loop {
            let chunk = trial.read_log(replica, LogStart::At(at), bytes_max);
            assert!(chunk.bytes.len() <= bytes_max && chunk.dropped == 0);
            assert_eq!(chunk.next, at + chunk.bytes.len() as u64);
            text.extend_from_slice(&chunk.bytes);
            at = chunk.next;
            if chunk.ended {
                break;
            }
            assert!(!chunk.bytes.is_empty(), "a log that has ended is read to its end");
        }
        assert_eq!(String::from_utf8_lossy(&text), expected);
    }
    let beyond = trial.read_log(replica, LogStart::At(1 << 40), 100);
    assert!(beyond.bytes.is_empty() && beyond.ended, "{beyond:?}");
}

/// A log whose replica runs has not ended, and goes on where it was read to.
pub fn a_log_is_read_on_while_it_grows(trial: &mut Trial) {
    let replica = trial.start("echo before; while ! [ -e \"$GO\" ]; do sleep 0.02; done; echo after");
    trial.wait_for_log(replica, "before\n");
    let first = trial.read_log(replica, LogStart::At(0), 100);
    assert_eq!((first.bytes.as_slice(), first.ended), (&b"before\n"[..], false));
    let nothing = trial.read_log(replica, LogStart::At(first.next), 100);
    assert_eq!((nothing.bytes.len(), nothing.next, nothing.ended), (0, first.next, false));
    trial.go();
    assert_eq!(trial.exit_of(replica), Exit::Code(0));
    let rest = trial.read_log(replica, LogStart::At(first.next), 100);
    assert_eq!((rest.bytes.as_slice(), rest.ended), (&b"after\n"[..], true));
    let never = trial.read_log(ReplicaId(1_000_000), LogStart::At(0), 100);
    assert!(never.bytes.is_empty() && !never.ended, "{never:?}");
}

/// Whatever is left of a long log is its end, and what is missing is counted.
pub fn a_log_tells_what_was_dropped(trial: &mut Trial) {
    let replica = trial.start("seq 100000 199999");
    assert_eq!(trial.exit_of(replica), Exit::Code(0));
    let expected: String = (100_000..200_000).map(|number| format!("{number}\n")).collect();
    let first = trial.read_log(replica, LogStart::At(0), 1_000);
    let kept = trial.log(replica);
    assert_eq!(first.dropped + kept.len() as u64, expected.len() as u64);
    assert!(!kept.is_empty() && expected.ends_with(&kept));
    let inside = trial.read_log(replica, LogStart::At(first.dropped + 10), 20);
    assert_eq!((inside.dropped, inside.next), (0, first.dropped + 30));
    assert_eq!(String::from_utf8_lossy(&inside.bytes), kept[10..30]);
}

/// As `tail` would.
pub fn the_last_lines_of_a_log_are_found(trial: &mut Trial) {
    let replica = trial.start("seq 100000 139999; printf end");
    assert_eq!(trial.exit_of(replica), Exit::Code(0));
    let last = |lines| {
        let chunk = trial.read_log(replica, LogStart::LastLines(lines), 1 << 20);
        assert_eq!((chunk.dropped, chunk.ended, chunk.next), (0, true, 40_000 * 7 + 3));
        String::from_utf8_lossy(&chunk.bytes).into_owned()
    };
    assert_eq!(last(0), "");
    assert_eq!(last(1), "end");
    assert_eq!(last(3), "139998\n139999\nend");
    let many = last(20_000);
    assert!(many.starts_with("120001\n") && many.lines().count() == 20_000);
    assert!(last(1_000_000).ends_with(&many));
}

/// A replica finds the folder it is told, what it saves there is counted, and deleted when that is asked for.
pub fn checkpoints_have_a_place(trial: &mut Trial) {
    let checkpoints = trial.backend().checkpoints();
    let job = JobId(7);
    let began = SystemTime::now() - Duration::from_secs(60);
    let mut order = trial.order("printf 0123456789 > \"$CHECKPOINTS/saved\"");
    order.job = job;
    order.checkpoint_dir = checkpoints.location(job);
    order.environment.insert("CHECKPOINTS".to_owned(), order.checkpoint_dir.clone());
    trial.backend().start(&order);
    assert_eq!(trial.exit_of(order.replica), Exit::Code(0));
    assert_ne!(checkpoints.location(job), checkpoints.location(JobId(8)));

    let list = || wait_for_answer(|answer| checkpoints.list(answer)).expect("they can be listed");
    let saved = |list: Vec<SavedCheckpoints>| list.into_iter().find(|saved| saved.job == job);
    let found = saved(list()).expect("it has saved");
    assert!(found.bytes >= 10 && found.written > began, "{found:?}");
    let delete = |epoch| wait_for_answer(|answer| checkpoints.delete(epoch, job, answer));
    assert!(delete(Epoch(0)).is_err(), "an old scheduler deletes nothing");
    assert_eq!(saved(list()), Some(found));
    assert_eq!(delete(trial.epoch()).expect("they can be deleted"), found.bytes);
    assert_eq!(saved(list()), None);
    assert_eq!(delete(trial.epoch()).expect("what is gone is as good as deleted"), 0);
}
