use std::fs;

use crate::binary::fresh_folder;
use crate::daemon::Daemon;

#[test]
fn checkpoints_are_pruned_when_their_job_is_over_and_not_before() {
    let folder = fs::canonicalize(fresh_folder("up", "pruned-checkpoints")).unwrap();
    let daemon = Daemon::start_with("pruned", &["--checkpoint-dir", folder.to_str().unwrap()]);
    let save = "printf 0123456789 > \"$POLLUX_CHECKPOINT_DIR/saved\"";
    let done = daemon.pollux(&["submit", "--watch", "--rigid", "--", "sh", "-c", save]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let live = daemon.pollux(&["submit", "--rigid", "--", "sh", "-c", &format!("{save}; echo saved; sleep 600")]);
    assert_eq!(live.code, Some(0), "{}", live.stderr);
    daemon.wait_for_log("2", "saved");

    let dry = daemon.pollux(&["prune", "--dry-run", "--keep-for", "0s", "-o", "json"]).json();
    assert_eq!(
        (&dry["deleted"][0]["job"], &dry["bytes_freed"], &dry["bytes_live"]),
        (&1.into(), &10.into(), &10.into())
    );
    assert!(folder.join("1/saved").exists());
    let kept = daemon.pollux(&["prune"]);
    assert_eq!(
        kept.stdout, "0 B freed; 10 B of jobs that are over and 10 B of live jobs are kept\n",
        "{}",
        kept.stderr
    );
    let pruned = daemon.pollux(&["prune", "--keep-for", "0s"]);
    assert!(pruned.stdout.ends_with("10 B freed; 0 B of jobs that are over and 10 B of live jobs are kept\n"));
    assert!(!folder.join("1").exists() && folder.join("2/saved").exists());
    assert_eq!(daemon.pollux(&["cancel", "2"]).code, Some(0));
    let refused = daemon.pollux(&["prune", "--keep-for", "soon"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("--keep-for is \"soon\"") && refused.stderr.contains("2d"), "{}", refused.stderr);
}
