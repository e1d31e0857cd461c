//! What runs in an allocation.

use std::path::Path;

use pollux_api::AllocationQueueSpec;

use crate::queue::Allocation;

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
pub(crate) fn script(queue: &AllocationQueueSpec, allocation: &Allocation, join: &Join<'_>) -> String {
    let name = &queue.name;
    let mut options = format!(" --drain-before {}s --idle-timeout {}s", queue.drain_before_s, queue.idle_timeout_s);
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
    # Slurm before 23.02 does not say when the job ends. One that cannot be asked either ends as late as was asked for.
    end=${{SLURM_JOB_END_TIME:-$(SLURM_TIME_FORMAT=%s squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e 2>/dev/null)}}
    case $end in '' | *[!0-9]*) end=$(($(date +%s) + {time_limit_s})) ;; esac
    exec srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --overlap \
        --kill-on-bad-exit=0 sh {script} node "$end"
fi
# Where Slurm itself reaches this node, the others of the cluster do.
address=$(sinfo --noheader --nodes="$SLURMD_NODENAME" --format=%o 2>/dev/null | head -n 1)
folder="${{TMPDIR:-/tmp}}/pollux-$(id -u)-$SLURM_JOB_ID-$SLURM_NODEID"
# Not one that somebody else has made there.
mkdir -m 700 -- "$folder" || exit 1
{program} node --join {url} --token-file {token} --name "{name}-$SLURM_JOB_ID-$SLURM_NODEID" --state "$folder" \
    --ends-at "$2" ${{address:+--address "$address"}}{options}
status=$?
# Who has left in good order is nobody any more, and nothing runs there.
if [ -d "$folder" ] && [ -z "$(find "$folder" -name node.json)" ]; then
    rm -rf -- "$folder"
    status=0
fi
exit $status
"#,
        allocation = allocation.name,
        time_limit_s = queue.time_limit_s,
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
        let queue = AllocationQueueSpec { gpu_type: Some("a100".to_owned()), slots: Some(2), ..spec("main") };
        let text = script(&queue, &new_allocation(7, "pollux-ab-main-7".to_owned(), 0), &join);
        let checked = std::process::Command::new("sh").args(["-n", "-c", &text]).status().unwrap();
        assert!(checked.success(), "{text}");
        for part in [
            r"'/opt/it'\''s here/pollux' node --join 'https://login:7878' --token-file '/shared/slurm/join-token'",
            r#"--name "main-$SLURM_JOB_ID-$SLURM_NODEID""#,
            r#"--ends-at "$2""#,
            "--drain-before 600s --idle-timeout 600s --gpu-type 'a100' --slots 2",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    /// What agents are told as the end, where `squeue` prints this and the job's environment is so.
    fn end(squeue: &str, environment: &[(&str, &str)]) -> u64 {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let said = at("said");
        let programs = [
            ("squeue", format!("#!/bin/sh\n{squeue}\n")),
            // Behind its options is what it is to start.
            ("srun", "#!/bin/sh\nwhile [ \"$1\" != sh ]; do shift; done\nexec \"$@\"\n".to_owned()),
            ("sinfo", "#!/bin/sh\n".to_owned()),
            ("agent", format!("#!/bin/sh\necho \"$@\" > '{}'\n", said.display())),
        ];
        for (name, text) in programs {
            use std::os::unix::fs::PermissionsExt;
            std::fs::write(at(name), text).unwrap();
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let (program, token_file) = (at("agent"), at("join-token"));
        let join = Join { url: "http://login:7878", program: &program, token_file: &token_file };
        let text = script(&spec("main"), &new_allocation(7, "pollux-ab-main-7".to_owned(), 0), &join);
        std::fs::write(at("script"), text).unwrap();
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let mut batch = std::process::Command::new("sh");
        batch.args(["-c", &super::batch(&at("script"))]).env_clear().env("PATH", path).env("TMPDIR", folder.path());
        batch.envs([("SLURM_JOB_ID", "4711"), ("SLURM_NODEID", "0"), ("SLURM_JOB_NUM_NODES", "1")]);
        batch.env("SLURMD_NODENAME", "n1").envs(environment.iter().copied());
        assert!(batch.status().unwrap().success());
        let said = std::fs::read_to_string(said).unwrap();
        let mut words = said.split_whitespace().skip_while(|word| *word != "--ends-at");
        words.nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn agents_are_told_when_the_allocation_ends_whatever_slurm_it_is() {
        assert_eq!(end("exit 1", &[("SLURM_JOB_END_TIME", "1795058693")]), 1_795_058_693);
        assert_eq!(end("[ \"$SLURM_TIME_FORMAT\" = %s ] && echo 1795058694", &[]), 1_795_058_694);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        for squeue in ["exit 1", "echo Unknown"] {
            let at = end(squeue, &[]);
            assert!((now + spec("main").time_limit_s..now + spec("main").time_limit_s + 600).contains(&at), "{at}");
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
