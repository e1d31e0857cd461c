//! What `squeue` prints.

use crate::process::{CommandError, Printed};

/// How `squeue` is to print: names come last, because a user's own may hold anything.
pub(crate) const FORMAT: &str = "%i|%T|%D|%S|%e|%r|%N|%j";
const FIELDS: usize = 8;

/// A job of Slurm's as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Its number.
    pub(crate) job: u64,
    /// Its name.
    pub(crate) name: String,
    /// What Slurm calls its state.
    pub(crate) state: String,
    /// How many nodes it has or wants.
    pub(crate) nodes: u32,
    /// When it has started, or is expected to, in seconds since 1970.
    pub(crate) start_s: Option<u64>,
    /// When it ends at the latest.
    pub(crate) end_s: Option<u64>,
    /// Why it waits, in Slurm's word.
    pub(crate) reason: String,
    /// The nodes that it has.
    pub(crate) hosts: String,
}

/// The jobs whose names begin in some way. One line that makes no sense makes the whole no listing: a job that is missing
/// in it would be taken as over.
pub(crate) fn parse(printed: &Printed, prefix: &str) -> Result<Vec<Listed>, CommandError> {
    let nonsense = |text: &str| CommandError::Nonsense {
        program: "squeue".to_owned(),
        printed: text.chars().take(120).collect(),
        expected: "a line for each job, in the format that was asked for",
    };
    if printed.is_cut {
        return Err(nonsense(&printed.stdout));
    }
    let mut listed = Vec::new();
    for line in printed.stdout.lines().filter(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.splitn(FIELDS, '|').map(str::trim).collect();
        let &[job, state, nodes, start, end, reason, hosts, name] = &fields[..] else { return Err(nonsense(line)) };
        if !name.starts_with(prefix) {
            continue;
        }
        let (Ok(job), Ok(nodes)) = (job.parse(), nodes.parse()) else { return Err(nonsense(line)) };
        listed.push(Listed {
            job,
            name: name.to_owned(),
            // Some versions say more behind the word.
            state: state.split([' ', '+']).next().unwrap_or_default().to_owned(),
            nodes,
            start_s: start.parse().ok(),
            end_s: end.parse().ok(),
            reason: reason.trim_matches(['(', ')']).to_owned(),
            hosts: hosts.to_owned(),
        });
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(text: &str) -> Result<Vec<Listed>, CommandError> {
        parse(&Printed { stdout: text.to_owned(), stderr: String::new(), is_cut: false }, "pollux-")
    }

    /// As Slurm 22.05 of Debian 12 printed it, with times in seconds.
    const SLURM_22_05: &str = "\
2|PENDING|4|1795058693|1795058813|Resources||pollux-ab-a100-2
3|PENDING|9|N/A|N/A|PartitionNodeLimit||pollux-ab-a100-3
1|RUNNING|2|1795058573|1795058693|None|n[1-2]|pollux-ab-a100-1
";
    /// Lines as they are documented for later versions: arrays and components of other jobs, names that hold anything.
    const OTHERS: &str = "\
812_[3-9%2]|PENDING|1|N/A|N/A|JobArrayTaskLimit||sweep
813+1|RUNNING|1|1795058573|NONE|None|gpu-a[01-04,7]|het|job
814|CANCELLED by 1000|2|1795058573|1795058600|ReqNodeNotAvail, UnavailableNodes:n[1-3]|n1|pollux-ab-a100-4
";

    #[test]
    fn what_slurm_prints_is_read() {
        let jobs = listing(SLURM_22_05).unwrap();
        assert_eq!(
            jobs[0],
            Listed {
                job: 2,
                name: "pollux-ab-a100-2".to_owned(),
                state: "PENDING".to_owned(),
                nodes: 4,
                start_s: Some(1_795_058_693),
                end_s: Some(1_795_058_813),
                reason: "Resources".to_owned(),
                hosts: String::new(),
            }
        );
        assert_eq!((jobs[1].start_s, jobs[1].reason.as_str()), (None, "PartitionNodeLimit"));
        assert_eq!((jobs[2].state.as_str(), jobs[2].hosts.as_str()), ("RUNNING", "n[1-2]"));
        let others = listing(OTHERS).unwrap();
        assert_eq!((others.len(), others[0].job, others[0].state.as_str()), (1, 814, "CANCELLED"));
        assert_eq!(listing("\n").unwrap(), []);
    }

    #[test]
    fn a_line_that_makes_no_sense_makes_the_whole_no_listing() {
        for text in ["slurm_load_jobs error: Unable to contact slurm controller", "x|RUNNING|1|1|1|None|n1|pollux-1"] {
            let error = listing(&format!("{SLURM_22_05}{text}\n")).unwrap_err().to_string();
            assert!(
                error.starts_with("squeue printed \"") && error.contains("expected a line for each job"),
                "{error}"
            );
        }
        let cut = Printed { stdout: SLURM_22_05.to_owned(), stderr: String::new(), is_cut: true };
        assert!(parse(&cut, "pollux-").is_err());
    }
}
