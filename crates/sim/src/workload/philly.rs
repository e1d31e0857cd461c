use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use super::jobs::{Arrival, named};
use super::requests::guess;
use super::tuned::requests_within;
use super::{Requests, Workload, WorkloadError};
use crate::table::{Row, Table, TableError, is_measure};
use crate::{ApplicationName, ApplicationSet, SimRng};

const COLUMNS: &[&str] = &["timestamp", "duration", "num_gpus", "gpu_time"];
/// More of a header is no header.
const HEADER_BYTES_MAX: u64 = 1 << 16;
/// Shorter jobs of the log failed or were tests.
const DURATION_MIN_S: f64 = 60.0;
const HOUR_S: f64 = 3600.0;
/// Whoever waits longer for a job asks for more GPUs.
const PATIENCE_S: f64 = 24.0 * HOUR_S;

/// How jobs are drawn from a cluster's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhillySettings {
    /// How many jobs to draw.
    pub jobs: usize,
    /// Hour of the day at which the workload starts.
    pub first_hour: u32,
    /// Hours of the day that it covers.
    pub hours: u32,
    /// The same seed draws the same jobs.
    pub seed: u64,
    /// Nobody asks for more GPUs: those of the cluster.
    pub requested_replicas_max: u32,
    /// How users come to what they ask for.
    pub requests: Requests,
}

impl Default for PhillySettings {
    /// What the paper replays: 160 jobs from the eight busiest hours.
    fn default() -> Self {
        Self { jobs: 160, first_hour: 2, hours: 8, seed: 0, requested_replicas_max: 64, requests: Requests::Tuned }
    }
}

#[derive(Clone, Copy)]
struct Entry {
    second_of_day: u64,
    duration_s: f64,
    gpus: u32,
    gpu_hours: f64,
}

/// Whether the header of a file is that of a cluster's log, and not of a list of jobs.
pub fn is_philly(path: &Path) -> io::Result<bool> {
    let mut header = Vec::new();
    BufReader::new(File::open(path)?.take(HEADER_BYTES_MAX)).read_until(b'\n', &mut header)?;
    let header = String::from_utf8_lossy(&header);
    let has = |column: &str| header.split(',').any(|name| name.trim().trim_matches('"') == column);
    Ok(has("timestamp") && has("gpu_time"))
}

/// Draws a workload from a log in the form of `philly.csv`: `timestamp,duration,num_gpus,gpu_time,cluster`.
///
/// The log says how long a job used GPUs, not what it trained. As in the paper, its GPU-hours choose an application of
/// that size: below 1 cifar10 or ncf, below 10 deepspeech2 or bert, below 100 yolov3, below 1000 imagenet; jobs beyond
/// and jobs of less than a minute are left out. Days are laid over each other: only the time of day remains. The
/// request is one that a careful user would make ([`tuned_requests`](crate::tuned_requests)), or that of the log: the
/// GPUs that the job asked for, if it ended within a day, otherwise those of one of its size that did.
pub fn read_philly(
    path: &Path,
    settings: &PhillySettings,
    applications: &ApplicationSet,
) -> Result<Workload, WorkloadError> {
    sample(&Table::read(path, COLUMNS)?, settings, applications)
}

fn sample(table: &Table, settings: &PhillySettings, applications: &ApplicationSet) -> Result<Workload, WorkloadError> {
    let refuse = |name, value: u32, accepted: &str| {
        Err(WorkloadError::Setting { name, value: value.to_string(), accepted: accepted.to_owned() })
    };
    if settings.first_hour > 23 {
        return refuse("first_hour", settings.first_hour, "0 to 23");
    }
    if !(1..=24).contains(&settings.hours) {
        return refuse("hours", settings.hours, "1 to 24");
    }
    let mut entries = Vec::new();
    for row in table.rows() {
        let entry = entry(&row, settings.first_hour)?;
        entries.extend(entry.filter(|entry| entry.second_of_day < u64::from(settings.hours) * 3600));
    }
    if !(1..=entries.len()).contains(&settings.jobs) {
        let accepted = format!("1 to {}, the jobs of the log that fit", entries.len());
        return Err(WorkloadError::Setting { name: "jobs", value: settings.jobs.to_string(), accepted });
    }
    let mut seeds = SimRng::new(settings.seed);
    let (mut draws, mut kinds, mut requests) = (seeds.split(), seeds.split(), seeds.split());
    let choices =
        ApplicationName::ALL.map(|name| requests_within(applications.get(name), settings.requested_replicas_max));
    let mut arrivals = Vec::with_capacity(settings.jobs);
    for drawn in 0..settings.jobs {
        // A step of a shuffle: what was drawn moves to the front and is not drawn again.
        let idx = drawn + draws.below(entries.len() - drawn);
        entries.swap(drawn, idx);
        let kinds_of_size = of_size(entries[drawn].gpu_hours);
        let application = kinds_of_size[kinds.below(kinds_of_size.len())];
        let request = match settings.requests {
            Requests::Tuned => {
                let tuned = &choices[application as usize];
                tuned[requests.below(tuned.len())]
            }
            Requests::Realistic => {
                let gpus = asked_gpus(&entries, drawn, &mut requests);
                guess(applications.get(application), gpus, settings.requested_replicas_max)
            }
        };
        arrivals.push(Arrival { submitted_s: entries[drawn].second_of_day, application, request });
    }
    let name = format!("philly-{}", settings.seed);
    Workload::new(&name, Some(settings.seed), named(arrivals))
}

/// A row that can stand for a job; the second counts from the first hour of the workload.
fn entry(row: &Row<'_>, first_hour: u32) -> Result<Option<Entry>, TableError> {
    let second = second_of_day(row.text(0)?).ok_or_else(|| row.refuse(0, "YYYY-MM-DD HH:MM:SS"))?;
    let duration_s = row.get(1, "seconds, 0 or more", is_measure)?;
    let gpus = row.get(2, "1 or more", |&gpus: &u32| gpus > 0)?;
    let gpu_hours = row.get(3, "GPU-seconds, 0 or more", is_measure)? / HOUR_S;
    let second_of_day = (second + 86_400 - u64::from(first_hour) * 3600) % 86_400;
    let fits = duration_s >= DURATION_MIN_S && gpu_hours < 1000.0;
    Ok(fits.then_some(Entry { second_of_day, duration_s, gpus, gpu_hours }))
}

/// GPUs that the user of an entry asks for.
fn asked_gpus(entries: &[Entry], idx: usize, rng: &mut SimRng) -> u32 {
    let entry = &entries[idx];
    let is_alike =
        |other: &&Entry| other.duration_s < PATIENCE_S && of_size(other.gpu_hours) == of_size(entry.gpu_hours);
    if is_alike(&entry) {
        return entry.gpus;
    }
    let alike: Vec<&Entry> = entries.iter().filter(is_alike).collect();
    if alike.is_empty() { entry.gpus } else { alike[rng.below(alike.len())].gpus }
}

fn of_size(gpu_hours: f64) -> &'static [ApplicationName] {
    if gpu_hours < 1.0 {
        &[ApplicationName::Cifar10, ApplicationName::Ncf]
    } else if gpu_hours < 10.0 {
        &[ApplicationName::Deepspeech2, ApplicationName::Bert]
    } else if gpu_hours < 100.0 {
        &[ApplicationName::Yolov3]
    } else {
        &[ApplicationName::Imagenet]
    }
}

fn second_of_day(timestamp: &str) -> Option<u64> {
    let (date, time) = timestamp.split_once(' ')?;
    let number = |text: &str, digits: usize, range: std::ops::RangeInclusive<u64>| {
        let plain = text.len() == digits && text.bytes().all(|digit| digit.is_ascii_digit());
        text.parse().ok().filter(|value| plain && range.contains(value))
    };
    let mut date = date.split('-');
    number(date.next()?, 4, 1970..=9999)?;
    number(date.next()?, 2, 1..=12)?;
    number(date.next()?, 2, 1..=31)?;
    let mut time = time.split(':');
    let hour = number(time.next()?, 2, 0..=23)?;
    let minute = number(time.next()?, 2, 0..=59)?;
    let second = number(time.next()?, 2, 0..=59)?;
    (date.next().is_none() && time.next().is_none()).then_some(hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str, jobs: usize) -> Result<Workload, String> {
        let settings = PhillySettings { jobs, ..PhillySettings::default() };
        let table = Table::parse("p.csv", text.as_bytes(), COLUMNS).map_err(|error| error.to_string())?;
        sample(&table, &settings, &ApplicationSet::parametric()).map_err(|error| error.to_string())
    }

    const LOG: &str = "timestamp,duration,num_gpus,gpu_time,cluster\n\
        2017-10-09 03:00:05,7200,1,7200,a\n\
        2017-10-10 02:00:09,36000,100,3500000,a\n\
        2017-10-11 09:59:59,360000,1,360000,a\n\
        2017-10-09 10:00:00,100,1,100,a\n\
        2017-10-09 05:00:00,59,1,59,a\n\
        2017-10-09 05:00:00,36000,1000,36000000,a\n";

    #[test]
    fn gpu_hours_choose_the_application_and_the_time_of_day_the_arrival() {
        let workload = read(LOG, 3).unwrap();
        let seen: Vec<_> = workload.jobs().iter().map(|job| (job.submitted_s, job.application)).collect();
        assert_eq!((seen[0], seen[2]), ((9, ApplicationName::Imagenet), (28_799, ApplicationName::Imagenet)));
        assert!(seen[1].0 == 3605 && [ApplicationName::Bert, ApplicationName::Deepspeech2].contains(&seen[1].1));
    }

    #[test]
    fn realistic_users_ask_as_the_log_does_and_the_impatient_for_more() {
        let settings = PhillySettings { jobs: 3, requests: Requests::Realistic, ..PhillySettings::default() };
        let table = Table::parse("p.csv", LOG.as_bytes(), COLUMNS).unwrap();
        let workload = sample(&table, &settings, &ApplicationSet::parametric()).unwrap();
        let asked: Vec<_> = workload.jobs().iter().map(|job| job.requested_replicas).collect();
        assert_eq!(asked, [64, 1, 64], "the last ran for four days on one");
        let baseline = |name| ApplicationSet::parametric().get(name).limits().batch_size_baseline();
        assert!(
            workload.jobs().iter().all(|job| job.requested_batch == baseline(job.application) * job.requested_replicas)
        );
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        assert_eq!(read(LOG, 4).unwrap_err(), "jobs 4; expected 1 to 3, the jobs of the log that fit");
        let broken = LOG.replace("2017-10-11 09:59:59", "2017-10-11T09:59:59");
        let expected = "p.csv:4: timestamp \"2017-10-11T09:59:59\"; expected YYYY-MM-DD HH:MM:SS";
        assert_eq!(read(&broken, 1).unwrap_err(), expected);
        let broken = LOG.replace("59,59", "-59,59").replace("59,1,59", "-59,1,59");
        assert_eq!(read(&broken, 1).unwrap_err(), "p.csv:6: duration \"-59\"; expected seconds, 0 or more");
    }

    proptest! {
        #[test]
        fn no_row_makes_the_reader_panic(rows in "([0-9,\"\\-.: \n]|2017-10-09 03:00:05){0,80}") {
            let _outcome = read(&format!("timestamp,duration,num_gpus,gpu_time,cluster\n{rows}"), 1);
        }
    }
}
