//! Whether the kernel killed something of this container because it used too much memory.

use std::fs;

/// Where a container finds its own count, by version 2 and 1 of control groups.
const FILES: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

/// How many were killed so far; 0 where nobody says.
pub(crate) fn kills() -> u64 {
    FILES.iter().filter_map(|file| kills_in(&fs::read_to_string(file).ok()?)).next().unwrap_or(0)
}

fn kills_in(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_say_it() {
        assert_eq!(kills_in("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(kills_in("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"), Some(1));
        assert_eq!(kills_in("oom_kill_disable 0\n"), None);
    }
}
