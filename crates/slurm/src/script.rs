//! What runs in an allocation.

use std::path::Path;

use crate::queue::{Allocation, QueueSpec};

/// What agents are told beside what their queue says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join<'a> {
    /// Where the scheduler is.
    pub(crate) url: &'a str,
    /// The program of the agents.
    pub(crate) program: &'a Path,
    /// The file with the token.
    pub(crate) token_file: &'a Path,
}

/// The script of an allocation: as the batch it starts itself once on each node, and there it is the agent.
pub(crate) fn script(queue: &QueueSpec, allocation: &Allocation, join: &Join<'_>) -> String {
    let name = &queue.name;
    let mut options = String::new();
    if let Some(gpu_type) = &queue.gpu_type {
        options += &format!(" --gpu-type {}", quoted(gpu_type));
    }
    if let Some(slots) = queue.slots {
        options += &format!(" --slots {slots}");
    }
    format!(
        r#"#!/bin/sh
# {allocation}: made by pollux for queue {name}.
if [ "${{1:-}}" != node ]; then
    exec srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --overlap \
        --kill-on-bad-exit=0 sh {script} node
fi
# Where Slurm itself reaches this node, the others of the cluster do.
address=$(sinfo --noheader --nodes="$SLURMD_NODENAME" --format=%o 2>/dev/null | head -n 1)
folder="${{TMPDIR:-/tmp}}/pollux-$(id -u)-$SLURM_JOB_ID-$SLURM_NODEID"
{program} node --join {url} --token-file {token} --name "{name}-$SLURM_JOB_ID-$SLURM_NODEID" --state "$folder" \
    ${{address:+--address "$address"}}{options}
status=$?
# Who has left in good order is nobody any more, and nothing runs there.
if [ -d "$folder" ] && [ -z "$(find "$folder" -name node.json)" ]; then
    rm -rf -- "$folder"
    status=0
fi
exit $status
"#,
        allocation = allocation.name,
        script = r#""$POLLUX_ALLOCATION_SCRIPT""#,
        program = quoted(&join.program.to_string_lossy()),
        url = quoted(join.url),
        token = quoted(&join.token_file.to_string_lossy()),
    )
}

/// The command line of the batch.
pub(crate) fn batch(script: &Path) -> String {
    let script = quoted(&script.to_string_lossy());
    format!("POLLUX_ALLOCATION_SCRIPT={script}; export POLLUX_ALLOCATION_SCRIPT; exec sh {script}")
}

/// A word for a shell, whatever it holds.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::spec;
    use crate::queues::new_allocation;

    #[test]
    fn the_script_is_one_that_shells_take_and_tells_agents_all_of_it() {
        let (program, token_file) = (Path::new("/opt/it's here/pollux"), Path::new("/shared/slurm/join-token"));
        let join = Join { url: "https://login:7878", program, token_file };
        let queue = QueueSpec { gpu_type: Some("a100".to_owned()), slots: Some(2), ..spec("main") };
        let text = script(&queue, &new_allocation(7, "pollux-ab-main-7".to_owned(), 0), &join);
        let checked = std::process::Command::new("sh").args(["-n", "-c", &text]).status().unwrap();
        assert!(checked.success(), "{text}");
        for part in [
            r"'/opt/it'\''s here/pollux' node --join 'https://login:7878' --token-file '/shared/slurm/join-token'",
            r#"--name "main-$SLURM_JOB_ID-$SLURM_NODEID""#,
            "--gpu-type 'a100' --slots 2",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn words_stay_words_whatever_they_hold() {
        for word in ["/a b/c", "it's", "$(id)", "a\\b", "`x`"] {
            let output = std::process::Command::new("sh").args(["-c", &format!("printf %s {}", quoted(word))]).output();
            assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), word);
        }
    }
}
