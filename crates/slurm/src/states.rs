//! What Slurm calls the states of a job.

/// How far a job of Slurm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It has no nodes yet, or they are being made ready.
    Waits,
    /// It has nodes.
    Runs,
    /// It has none any more.
    Over,
}

/// What a state means; nothing for one that is not known.
pub(crate) fn progress(state: &str) -> Option<Progress> {
    Some(match state {
        "PENDING" | "CONFIGURING" | "POWER_UP_NODE" | "REQUEUED" | "REQUEUE_FED" | "REQUEUE_HOLD" | "RESV_DEL_HOLD"
        | "SPECIAL_EXIT" => Progress::Waits,
        "RUNNING" | "COMPLETING" | "RESIZING" | "SIGNALING" | "STAGE_OUT" | "STOPPED" | "SUSPENDED" | "UPDATE_DB"
        | "EXPEDITING" => Progress::Runs,
        "BOOT_FAIL" | "CANCELLED" | "COMPLETED" | "DEADLINE" | "FAILED" | "LAUNCH_FAILED" | "NODE_FAIL"
        | "OUT_OF_MEMORY" | "PREEMPTED" | "RECONFIG_FAIL" | "REVOKED" | "TIMEOUT" => Progress::Over,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_of_the_manual_is_known_and_others_are_not() {
        let of = |states: &[&str]| states.iter().map(|state| progress(state)).collect::<Vec<_>>();
        let waits =
            ["PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"];
        assert_eq!(of(&waits), [Some(Progress::Waits); 7]);
        let runs = ["RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"];
        assert_eq!(of(&runs), [Some(Progress::Runs); 7]);
        let over = [
            "BOOT_FAIL",
            "CANCELLED",
            "COMPLETED",
            "DEADLINE",
            "FAILED",
            "NODE_FAIL",
            "OUT_OF_MEMORY",
            "PREEMPTED",
            "REVOKED",
            "TIMEOUT",
        ];
        assert_eq!(of(&over), [Some(Progress::Over); 10]);
        assert_eq!(of(&["HIBERNATING", ""]), [None; 2]);
    }
}
