//! What users may give `sbatch`, and what would fight with what Pollux says there.

use thiserror::Error;

/// An argument for `sbatch` that cannot be given.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// Pollux says it itself, or could not work with it.
    #[error("{argument} cannot be given to sbatch: {instead}")]
    Refused {
        /// As it was written.
        argument: String,
        /// What to do instead.
        instead: &'static str,
    },
    /// Arguments without end.
    #[error("{count} arguments for sbatch: expected {limit} or fewer, without control characters")]
    Unusable {
        /// How many were given.
        count: usize,
        /// How many may be.
        limit: usize,
    },
}

const ARGUMENTS_MAX: usize = 200;

/// Options by their long name, their letter (`-` for none), and what to do instead.
const REFUSED: &[(&str, char, &str)] = &[
    ("nodes", 'N', "say --nodes-per-alloc before `--`"),
    ("time", 't', "say --time-limit before `--`"),
    ("array", 'a', "each allocation is one job: --backlog and --max-nodes before `--` say how many"),
    ("job-name", 'J', "allocations are found by names that Pollux gives them"),
    ("ntasks", 'n', "one agent runs on each node: say --nodes-per-alloc before `--`"),
    ("ntasks-per-node", '-', "one agent runs on each node"),
    ("tasks-per-node", '-', "one agent runs on each node"),
    ("signal", '-', "nodes are emptied in time: say --drain-before before `--`"),
    ("requeue", '-', "an allocation that ends is replaced by another where it is worth it"),
    ("no-requeue", '-', "allocations are never started again"),
    ("output", 'o', "`pollux alloc log` shows what allocations print"),
    ("error", 'e', "`pollux alloc log` shows what allocations print"),
    ("open-mode", '-', "`pollux alloc log` shows what allocations print"),
    ("input", 'i', "allocations read nothing"),
    ("wrap", '-', "allocations run `pollux node` and nothing else"),
    ("wait", 'W', "the scheduler waits for nobody"),
    ("parsable", '-', "the scheduler says it itself"),
    ("test-only", '-', "`pollux alloc dry-run` shows what sbatch says"),
    ("quiet", 'Q', "sbatch has to say which job it has made"),
    ("help", 'h', "it would show a help text and ask for nothing"),
    ("usage", '-', "it would show a help text and ask for nothing"),
    ("version", 'V', "it would show a version and ask for nothing"),
    ("clusters", 'M', "allocations are looked for on one cluster: that of the scheduler"),
    ("uid", '-', "allocations belong to the scheduler's user"),
];
/// Options of one letter that take no value, so that other letters may follow.
const FLAGS: &str = "HIksvXO";

/// Refuses what cannot be given to `sbatch`.
pub(crate) fn check(arguments: &[String]) -> Result<(), ArgumentError> {
    let is_bad = |argument: &String| argument.is_empty() || argument.contains(|it: char| it.is_control());
    if arguments.len() > ARGUMENTS_MAX || arguments.iter().any(is_bad) {
        return Err(ArgumentError::Unusable { count: arguments.len(), limit: ARGUMENTS_MAX });
    }
    for argument in arguments {
        let refused = |instead| ArgumentError::Refused { argument: argument.clone(), instead };
        if argument == ":" {
            return Err(refused("an allocation is one job of equal nodes: add another queue for others"));
        }
        if argument == "--" {
            return Err(refused("options only: what runs there is `pollux node`"));
        }
        if let Some(instead) = long(argument).or_else(|| short(argument)) {
            return Err(refused(instead));
        }
    }
    Ok(())
}

/// Also by the beginning of a name, as programs take it.
fn long(argument: &str) -> Option<&'static str> {
    let name = argument.strip_prefix("--")?.split('=').next().unwrap_or_default();
    let is_it = |full: &str| full == name || (!name.is_empty() && full.starts_with(name));
    REFUSED.iter().find(|(full, ..)| is_it(full)).map(|(_, _, instead)| *instead)
}

fn short(argument: &str) -> Option<&'static str> {
    let letters = argument.strip_prefix('-').filter(|rest| !rest.starts_with('-'))?;
    for letter in letters.chars() {
        let found = REFUSED.iter().find(|(_, short, _)| *short == letter);
        if found.is_some() || !FLAGS.contains(letter) {
            return found.map(|(_, _, instead)| *instead);
        }
    }
    None
}

/// GPUs of each node, where the arguments tell.
pub(crate) fn gpus_per_node(arguments: &[String]) -> Option<u32> {
    let mut found = None;
    let mut words = arguments.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, words.peek().copied()),
        };
        let value = match (name, value) {
            ("--gpus-per-node", Some(value)) => Some(value),
            ("--gres", Some(value)) => value.split(',').find(|gres| *gres == "gpu" || gres.starts_with("gpu:")),
            _ => None,
        };
        let count = |value: &str| match value.rsplit(':').next().unwrap_or_default().parse() {
            Ok(count) => Some(count),
            Err(_) => (name == "--gres").then_some(1),
        };
        found = value.and_then(count).or(found);
    }
    found.filter(|gpus| *gpus > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), String> {
        let arguments: Vec<String> = text.split(' ').map(str::to_owned).collect();
        check(&arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn what_fights_with_ours_is_refused_with_what_to_do_instead() {
        for (text, message) in [
            ("--nodes=4", "--nodes=4 cannot be given to sbatch: say --nodes-per-alloc before `--`"),
            ("-p gpu -N 4", "-N cannot be given to sbatch: say --nodes-per-alloc before `--`"),
            ("-N4", "-N4 cannot be given to sbatch: say --nodes-per-alloc before `--`"),
            ("--time 1:00", "--time cannot be given to sbatch: say --time-limit before `--`"),
            ("--tim=1", "--tim=1 cannot be given to sbatch: say --time-limit before `--`"),
            ("-st10", "-st10 cannot be given to sbatch: say --time-limit before `--`"),
            (
                "-a 0-3",
                "-a cannot be given to sbatch: each allocation is one job: --backlog and --max-nodes before `--` say how many",
            ),
            (
                "--job-name=x",
                "--job-name=x cannot be given to sbatch: allocations are found by names that Pollux gives them",
            ),
            ("--wrap=sleep", "--wrap=sleep cannot be given to sbatch: allocations run `pollux node` and nothing else"),
            (
                "--gpus=1 : --gpus=2",
                ": cannot be given to sbatch: an allocation is one job of equal nodes: add another queue for others",
            ),
        ] {
            assert_eq!(checked(text), Err(message.to_owned()), "{text}");
        }
        for text in [
            "--partition=gpu --gres=gpu:a100:4 --account=ml --qos=normal --mem=0 --exclusive",
            "-p gpu -A ml -q long -C a100 -H --nodelist=n1 --time-min=10 --begin=now+1hour --cpus-per-task=8 --exclude=n2",
        ] {
            assert_eq!(checked(text), Ok(()), "{text}");
        }
        assert!(check(&["--comment=a\nb".to_owned()]).is_err());
    }

    #[test]
    fn the_gpus_of_a_node_are_read_where_they_are_told() {
        let of = |text: &str| gpus_per_node(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(of("--gres=gpu:a100:4 -p gpu"), Some(4));
        assert_eq!(of("--gres gpu:2"), Some(2));
        assert_eq!(of("--gres=gpu"), Some(1));
        assert_eq!(of("--gres=shard:2,gpu:8"), Some(8));
        assert_eq!(of("--gpus-per-node=h100:8"), Some(8));
        assert_eq!(of("-p gpu --exclusive"), None);
    }
}
