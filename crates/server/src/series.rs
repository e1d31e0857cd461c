//! Curves over time, for people who look: kept beside the scheduler, bounded, and worth nothing to it.

mod track;

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use pollux_api::{ClusterSeries, JobSeries};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::{Cluster, ServerError, files, views};
use track::{Moment, Ring, Track};

/// Seconds between moments, and how many are kept: ten minutes, two hours, a day, two weeks.
const RINGS: [(u64, usize); 4] = [(1, 600), (10, 720), (60, 1_440), (600, 2_016)];
/// Jobs that are over whose curves are kept.
const ENDED_MAX: usize = 1_000;
const FILE: &str = "series.json";

/// What is drawn of the cluster and its jobs.
#[derive(Debug)]
pub struct Series(Mutex<Curves>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Curves {
    cluster: Vec<Ring<ClusterMoment>>,
    live: BTreeMap<u64, Track<JobMoment>>,
    /// The one that ended first is forgotten first.
    ended: VecDeque<(u64, Track<JobMoment>)>,
}

/// A look at the cluster.
#[derive(Debug)]
pub struct Sample {
    cluster: ClusterMoment,
    /// Jobs that are live, with what they do if they do anything.
    jobs: BTreeMap<u64, Option<JobMoment>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct ClusterMoment {
    at_ms: u64,
    gpus: u32,
    gpus_held: u32,
    queued: u32,
    running: u32,
    goodput: f32,
    efficiency: Option<f32>,
    worst: Option<f32>,
    average: Option<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct JobMoment {
    at_ms: u64,
    /// When its agent spoke last.
    told_ms: u64,
    replicas: u32,
    batch_size: Option<u64>,
    learning_rate_factor: Option<f32>,
    samples_per_s: Option<f32>,
    efficiency: Option<f32>,
    noise_scale: Option<f32>,
}

impl Moment for ClusterMoment {
    fn at_ms(&self) -> u64 {
        self.at_ms
    }

    fn is_turn(&self, _: &Self) -> bool {
        false
    }
}

impl Moment for JobMoment {
    fn at_ms(&self) -> u64 {
        self.at_ms
    }

    fn is_turn(&self, before: &Self) -> bool {
        self.replicas != before.replicas
    }
}

impl Sample {
    /// Looks at the cluster.
    pub fn of(cluster: &Cluster<'_>) -> Self {
        let (engine, at_ms) = (cluster.engine(), cluster.now().0);
        let fairness = engine.fairness(cluster.now());
        let count = |of: fn(&pollux_engine::Job) -> bool| engine.jobs().filter(|job| of(job)).count() as u32;
        let moment = ClusterMoment {
            at_ms,
            gpus: engine.nodes().map(pollux_engine::Node::gpus).sum(),
            gpus_held: engine.nodes().map(pollux_engine::Node::gpus_held).sum(),
            queued: count(|job| job.phase() == pollux_job::Phase::Queued),
            running: count(|job| !job.group().is_empty()),
            goodput: engine.goodput() as f32,
            efficiency: engine.efficiency().map(|part| part as f32),
            worst: fairness.map(|fairness| fairness.worst as f32),
            average: fairness.map(|fairness| fairness.average as f32),
        };
        let jobs = engine.jobs().map(|job| (job.id().0, (!job.group().is_empty()).then(|| job_moment(job, at_ms))));
        Self { cluster: moment, jobs: jobs.collect() }
    }
}

fn job_moment(job: &pollux_engine::Job, at_ms: u64) -> JobMoment {
    let (pace, received) = (job.pace(), job.report());
    let report = received.map(|received| &received.report).filter(|_| pace.is_some());
    JobMoment {
        at_ms,
        told_ms: received.map_or(0, |received| received.at.0),
        replicas: job.group().replicas(),
        batch_size: pace.map(|pace| pace.batch_size),
        learning_rate_factor: report.map(|report| report.learning_rate_factor as f32),
        samples_per_s: pace.and_then(|pace| pace.samples_per_s).map(|rate| rate as f32),
        efficiency: pace.map(|pace| pace.efficiency as f32),
        noise_scale: report.and_then(views::noise_scale).map(|scale| scale as f32),
    }
}

impl Default for Series {
    fn default() -> Self {
        let cluster = RINGS.map(|(step_s, length)| Ring::new(step_s, length)).into();
        Self(Mutex::new(Curves { cluster, live: BTreeMap::new(), ended: VecDeque::new() }))
    }
}

impl Series {
    /// Goes on with what was kept; what cannot be read is not missed.
    pub(crate) fn load(state_dir: &Path) -> Self {
        let file = state_dir.join(FILE);
        let text = match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::default(),
            text => text.map_err(|error| error.to_string()),
        };
        let curves = text.and_then(|text| serde_json::from_str::<Curves>(&text).map_err(|error| error.to_string()));
        let curves = curves.inspect_err(|reason| warn!(file = %file.display(), reason, "curves begin anew")).ok();
        let is_ours = |curves: &Curves| {
            let rings = curves.cluster.iter().map(|ring| (ring.step_s(), ring.length()));
            rings.eq(RINGS)
        };
        curves.filter(is_ours).map_or_else(Self::default, |curves| Self(Mutex::new(curves)))
    }

    /// Keeps everything for the next server.
    pub(crate) fn save(&self, state_dir: &Path) -> Result<(), ServerError> {
        // Handlers wait for the copy, not for the text, which takes many times as long.
        let curves = self.curves().clone();
        let text = crate::text(&curves);
        files::write(&state_dir.join(FILE), &text)
    }

    /// Adds a look at the cluster to all curves.
    pub fn record(&self, sample: &Sample) {
        let mut curves = self.curves();
        for ring in &mut curves.cluster {
            ring.push(sample.cluster);
        }
        for (&id, moment) in &sample.jobs {
            match (moment, curves.live.get_mut(&id)) {
                (Some(moment), Some(track)) if track.last().is_some_and(|last| has_news(last, moment)) => {
                    track.push(*moment);
                }
                (None, Some(track)) if track.last().is_some_and(|last| last.replicas > 0) => {
                    track.push(nothing(sample.cluster.at_ms));
                }
                (Some(moment), None) => drop(curves.live.insert(id, Track::starting_with(*moment))),
                (_, Some(_)) | (None, None) => {}
            }
        }
        let gone: Vec<u64> = curves.live.keys().filter(|id| !sample.jobs.contains_key(id)).copied().collect();
        for id in gone {
            let Some(mut track) = curves.live.remove(&id) else { continue };
            track.shorten();
            curves.ended.push_back((id, track));
        }
        let surplus = curves.ended.len().saturating_sub(ENDED_MAX);
        curves.ended.drain(..surplus);
    }

    /// The cluster over so many seconds, as finely as is known.
    pub fn cluster(&self, span_s: u64) -> ClusterSeries {
        let curves = self.curves();
        let covers = |ring: &&Ring<ClusterMoment>| ring.span_s() >= span_s;
        let mut series = ClusterSeries::default();
        let Some(ring) = curves.cluster.iter().find(covers).or(curves.cluster.last()) else { return series };
        series.step_s = ring.step_s();
        let since = ring.last().map_or(0, |last| last.at_ms.saturating_sub(span_s.saturating_mul(1_000)));
        for moment in ring.iter().filter(|moment| moment.at_ms >= since) {
            series.at_ms.push(moment.at_ms);
            series.gpus.push(moment.gpus);
            series.gpus_held.push(moment.gpus_held);
            series.queued.push(moment.queued);
            series.running.push(moment.running);
            series.goodput.push(f64::from(moment.goodput));
            series.efficiency.push(moment.efficiency.map(f64::from));
            series.unfairness_worst.push(moment.worst.map(f64::from));
            series.unfairness_average.push(moment.average.map(f64::from));
        }
        series
    }

    /// A job over its life; empty if nothing is known of it any more.
    pub fn job(&self, id: u64) -> JobSeries {
        let curves = self.curves();
        let ended = || curves.ended.iter().find(|(ended, _)| *ended == id).map(|(_, track)| track);
        let mut series = JobSeries::default();
        for moment in curves.live.get(&id).or_else(ended).into_iter().flat_map(Track::iter) {
            series.at_ms.push(moment.at_ms);
            series.replicas.push(moment.replicas);
            series.batch_size.push(moment.batch_size);
            series.learning_rate_factor.push(moment.learning_rate_factor.map(f64::from));
            series.samples_per_s.push(moment.samples_per_s.map(f64::from));
            series.efficiency.push(moment.efficiency.map(f64::from));
            let goodput = moment.samples_per_s.zip(moment.efficiency).map(|(rate, worth)| f64::from(rate * worth));
            series.goodput.push(goodput);
            series.noise_scale.push(moment.noise_scale.map(f64::from));
        }
        series
    }

    fn curves(&self) -> MutexGuard<'_, Curves> {
        self.0.lock().expect("nobody panics with it")
    }
}

fn has_news(last: &JobMoment, moment: &JobMoment) -> bool {
    JobMoment { at_ms: last.at_ms, ..*moment } != *last
}

/// A job without GPUs.
const fn nothing(at_ms: u64) -> JobMoment {
    JobMoment {
        at_ms,
        told_ms: 0,
        replicas: 0,
        batch_size: None,
        learning_rate_factor: None,
        samples_per_s: None,
        efficiency: None,
        noise_scale: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_s: u64, jobs: &[(u64, u32)]) -> Sample {
        let at_ms = at_s * 1_000;
        let moment = |replicas| JobMoment { replicas, told_ms: at_ms, ..nothing(at_ms) };
        let cluster = ClusterMoment {
            at_ms,
            gpus: 8,
            gpus_held: 0,
            queued: 0,
            running: 0,
            goodput: 0.0,
            efficiency: None,
            worst: None,
            average: None,
        };
        let jobs = jobs.iter().map(|&(id, replicas)| (id, (replicas > 0).then(|| moment(replicas))));
        Sample { cluster, jobs: jobs.collect() }
    }

    #[test]
    fn a_job_has_a_curve_from_its_first_gpu_on_which_outlives_it_and_the_server() {
        let series = Series::default();
        for (at_s, replicas) in [(1, 0), (2, 1), (3, 4), (4, 0), (5, 0), (6, 2)] {
            series.record(&sample(at_s, &[(7, replicas)]));
        }
        series.record(&sample(7, &[]));
        let told = series.job(7);
        assert_eq!((told.at_ms, told.replicas), (vec![2_000, 3_000, 4_000, 6_000], vec![1, 4, 0, 2]));
        assert_eq!(series.job(8), JobSeries::default());
        let folder = tempfile::tempdir().unwrap();
        series.save(folder.path()).unwrap();
        let again = Series::load(folder.path());
        assert_eq!((again.job(7), again.cluster(600)), (series.job(7), series.cluster(600)));
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        assert_eq!(Series::load(folder.path()).cluster(600), ClusterSeries { step_s: 1, ..ClusterSeries::default() });
    }

    #[test]
    fn a_longer_look_back_is_told_in_larger_steps_and_nothing_grows_for_ever() {
        let series = Series::default();
        for at_s in 0..10_000 {
            series.record(&sample(at_s, &[(at_s, 1)]));
        }
        let steps = [60, 3_600, 20_000].map(|span_s| {
            let told = series.cluster(span_s);
            (told.step_s, told.at_ms.len(), told.at_ms[0])
        });
        assert_eq!(steps, [(1, 61, 9_939_000), (10, 361, 6_399_000), (60, 167, 59_000)]);
        assert_eq!((series.job(9_000).at_ms.len(), series.job(100).at_ms.len()), (1, 0));
        assert_eq!(series.curves().ended.len(), ENDED_MAX);
    }
}
