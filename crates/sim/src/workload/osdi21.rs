use std::path::Path;

use pollux_job::{After, Dependency, JobId};

use super::jobs::first_fault;
use super::{ReplicaNeeds, Workload, WorkloadError, WorkloadJob};
use crate::ApplicationName;
use crate::table::{Cell, Row, Table, TableError};

const COLUMNS: &[&str] = &["name", "time", "application", "num_replicas", "batch_size"];
/// What a table may have beside these: what replicas need, and when the job may run.
const NEEDS: &[&str] = &["gpus_per_replica", "cpus", "memory", "gpu_types"];
const TIME_LIMIT: &str = "time_limit";
const DEPENDS_ON: &str = "depends_on";
const NAME_MAX: usize = 200;

/// Reads a workload in the form published with the paper: `name,time,application,num_replicas,batch_size`, in order of
/// time, in seconds that are rounded up to whole ones, and perhaps what replicas need: `gpus_per_replica`, `cpus`, `memory` such as `16G`, `gpu_types`
/// such as `a100;v100`. `time_limit`, such as `8h`, is how long the job may hold GPUs; `depends_on` has the names of
/// earlier jobs that have to succeed before it starts, such as `a;b`, or only to end, such as `a:end`. The workload is
/// named after the file.
pub fn read_osdi21(path: &Path) -> Result<Workload, WorkloadError> {
    let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    parse(&name, &Table::read(path, COLUMNS)?)
}

fn parse(name: &str, table: &Table) -> Result<Workload, WorkloadError> {
    let rows: Vec<_> = table.rows().collect();
    let mut jobs = Vec::with_capacity(rows.len());
    for row in &rows {
        let job_name = row.text(0)?;
        let printable = job_name.chars().all(|letter| !letter.is_control() && !letter.is_whitespace());
        if job_name.is_empty() || job_name.len() > NAME_MAX || !printable {
            return Err(row.refuse(0, "a name without spaces, of 1 to 200 bytes").into());
        }
        let application = row.text(2)?.parse::<ApplicationName>();
        let unknown = |_| -> TableError { row.refuse(2, &ApplicationName::accepted()) };
        jobs.push(WorkloadJob {
            name: job_name.to_owned(),
            // Part of a second makes no difference to anybody: rounds are at whole ones.
            submitted_s: row.get(1, "seconds, 0 or more", |time| (0.0..=f64::from(u32::MAX)).contains(time))?.ceil()
                as u64,
            application: application.map_err(unknown)?,
            requested_replicas: row.get(3, "1 or more", |&replicas| replicas > 0)?,
            requested_batch: row.get(4, "1 or more", |&batch_size| batch_size > 0)?,
            needs: needs(row)?,
            time_limit: row.optional(TIME_LIMIT).map(|cell| cell.parse(DURATION, seconds)).transpose()?,
            depends_on: dependencies(row, &jobs)?,
        });
    }
    if let Some((idx, fault)) = first_fault(&jobs) {
        let column = COLUMNS.iter().position(|&column| column == fault.field()).unwrap_or(0);
        return Err(rows[idx].refuse(column, &fault.accepted()).into());
    }
    Workload::new(name, None, jobs)
}

/// What a row says of its replicas; where it says nothing, they need one GPU.
fn needs(row: &Row<'_>) -> Result<ReplicaNeeds, TableError> {
    let [gpus, cpus, memory, types] = [0, 1, 2, 3].map(|idx| row.optional(NEEDS[idx]));
    let whole = |cell: &Cell<'_>| cell.parse("1 or more", |text| text.parse().ok().filter(|&number: &u32| number > 0));
    let size = "bytes, or a size such as 16G";
    Ok(ReplicaNeeds {
        gpus_per_replica: gpus.as_ref().map(whole).transpose()?.unwrap_or(1),
        cpus: cpus.as_ref().map(whole).transpose()?,
        memory: memory.map(|cell| cell.parse(size, |text| pollux_job::bytes(text).ok())).transpose()?,
        gpu_types: types.map_or(Ok(Vec::new()), |cell| cell.parse("names of GPU types", names))?,
    })
}

const DURATION: &str = "seconds from 1, or a time such as 8h";

fn seconds(text: &str) -> Option<u64> {
    pollux_job::seconds(text).ok().filter(|&seconds| seconds > 0)
}

/// Which of the jobs before it a row waits for.
fn dependencies(row: &Row<'_>, earlier: &[WorkloadJob]) -> Result<Vec<Dependency>, TableError> {
    let Some(cell) = row.optional(DEPENDS_ON) else { return Ok(Vec::new()) };
    let dependency = |text: &str| {
        let (name, after) = text.strip_suffix(":end").map_or((text, After::Success), |name| (name, After::End));
        let place = earlier.iter().position(|job| job.name == name)?;
        Some(Dependency { job: JobId(place as u64), after })
    };
    cell.parse("names of earlier jobs, such as a;b or a:end", |text| {
        text.split(';').map(str::trim).map(dependency).collect()
    })
}

fn names(text: &str) -> Option<Vec<String>> {
    let names = text.split(';').map(|name| name.trim().to_owned());
    Some(names.collect::<Vec<_>>()).filter(|names| names.iter().all(|name| !name.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8]) -> Result<Workload, String> {
        let table = Table::parse("w.csv", text, COLUMNS).map_err(|error| error.to_string())?;
        parse("w", &table).map_err(|error| error.to_string())
    }

    fn check(rows: &str, expected: &str) {
        let text = format!("name,time,application,num_replicas,batch_size\n{rows}");
        assert_eq!(read(text.as_bytes()).unwrap_err(), expected);
    }

    #[test]
    fn a_row_is_a_job() {
        let text = b"name,time,application,num_replicas,batch_size\nncf-0,0,ncf,1,32768\nb,9,bert,2,24\n";
        let workload = read(text).unwrap();
        let expected = WorkloadJob {
            name: "b".to_owned(),
            submitted_s: 9,
            requested_replicas: 2,
            requested_batch: 24,
            ..WorkloadJob::of(ApplicationName::Bert)
        };
        assert_eq!((workload.name(), workload.seed(), &workload.jobs()[1]), ("w", None, &expected));
    }

    #[test]
    fn a_row_may_say_what_replicas_need() {
        let header = "gpus_per_replica,memory,name,time,application,num_replicas,batch_size,gpu_types,cpus";
        let workload = read(format!("{header}\n4,16G,a,0,ncf,1,1,a100;v100,8\n,,b,1,ncf,1,1,,\n").as_bytes()).unwrap();
        let gpu_types = vec!["a100".to_owned(), "v100".to_owned()];
        let expected = ReplicaNeeds { gpus_per_replica: 4, cpus: Some(8), memory: Some(16 << 30), gpu_types };
        assert_eq!([&workload.jobs()[0].needs, &workload.jobs()[1].needs], [&expected, &ReplicaNeeds::default()]);
        let wrong = |rows: &str| read(format!("{header}\n{rows}\n").as_bytes()).unwrap_err();
        assert_eq!(wrong("0,,a,0,ncf,1,1,,"), "w.csv:2: gpus_per_replica \"0\"; expected 1 or more");
        let expected = "w.csv:2: memory \"many\"; expected bytes, or a size such as 16G";
        assert_eq!(wrong("1,many,a,0,ncf,1,1,,"), expected);
        assert_eq!(wrong("1,,a,0,ncf,1,1,;,"), "w.csv:2: gpu_types \";\"; expected names of GPU types");
    }

    #[test]
    fn a_row_may_say_how_long_the_job_may_run_and_which_go_first() {
        let header = "name,time,application,num_replicas,batch_size,time_limit,depends_on";
        let read = |rows: &str| read(format!("{header}\n{rows}\n").as_bytes());
        let workload = read("a,0,ncf,1,1,,\nb,0,ncf,1,1,2h,\nc,0,ncf,1,1,90,b;a:end").unwrap();
        let given: Vec<_> = workload.jobs().iter().map(|job| (job.time_limit, job.depends_on.as_slice())).collect();
        let [b, a] = [(1, After::Success), (0, After::End)].map(|(job, after)| Dependency { job: JobId(job), after });
        assert_eq!(given, [(None, &[][..]), (Some(7_200), &[]), (Some(90), &[b, a])]);
        let wrong = |rows: &str| read(rows).unwrap_err();
        assert_eq!(wrong("a,0,ncf,1,1,0,"), "w.csv:2: time_limit \"0\"; expected seconds from 1, or a time such as 8h");
        let expected = "w.csv:2: depends_on \"b\"; expected names of earlier jobs, such as a;b or a:end";
        assert_eq!(wrong("a,0,ncf,1,1,,b\nb,1,ncf,1,1,,"), expected);
    }

    #[test]
    fn a_wrong_row_is_refused_with_its_line() {
        check("a,-5,ncf,1,1\n", "w.csv:2: time \"-5\"; expected seconds, 0 or more");
        check("a,inf,ncf,1,1\n", "w.csv:2: time \"inf\"; expected seconds, 0 or more");
        check("a,5,ncf,0,1\n", "w.csv:2: num_replicas \"0\"; expected 1 or more");
        check("a,5,ncf,1,many\n", "w.csv:2: batch_size \"many\"; expected 1 or more");
        check(
            "a,5,gpt,1,1\n",
            "w.csv:2: application \"gpt\"; expected bert, cifar10, deepspeech2, imagenet, ncf, yolov3",
        );
        check("a b,5,ncf,1,1\n", "w.csv:2: name \"a b\"; expected a name without spaces, of 1 to 200 bytes");
    }

    #[test]
    fn rows_that_contradict_each_other_are_refused() {
        check("a,5,ncf,1,1\nb,4,ncf,1,1\n", "w.csv:3: time \"4\"; expected 5 or more, jobs come in order of time");
        check("a,5,ncf,1,1\na,5,ncf,1,1\n", "w.csv:3: name \"a\"; expected a name that no earlier job has");
        check("", "w.csv: no rows below the header; expected one row or more");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _outcome = read(&bytes);
        }

        #[test]
        fn no_row_makes_the_reader_panic(rows in "([a-z0-9,\"\\-.\n]|ncf|bert){0,80}") {
            let _outcome = read(format!("name,time,application,num_replicas,batch_size\n{rows}").as_bytes());
        }
    }
}
