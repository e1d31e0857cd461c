use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use pollux_api::JobDetail;
use pollux_client::{Client, LogQuery};
use pollux_job::Phase;
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use super::logs::Screen;
use super::text::{count, seconds_between, span};
use super::{LiveError, log_lines};
use crate::output;

/// Between two looks at the job.
const LOOK: Duration = Duration::from_millis(500);
/// Between two looks at the keyboard.
const GLANCE: Duration = Duration::from_millis(100);
/// Pieces of logs that wait to be shown at most.
const WAITING: usize = 64;

/// Shows a job's phases, GPUs and batch as talk and what it writes as data, until it has ended. An interruption leaves
/// it running.
pub(super) fn run(client: &Client, id: u64) -> anyhow::Result<()> {
    let interrupted = Arc::new(AtomicBool::new(false));
    flag::register(SIGINT, Arc::clone(&interrupted)).context("cannot listen for Ctrl-C")?;
    let (pieces, received) = mpsc::sync_channel(WAITING);
    let reader = client.clone();
    thread::Builder::new().name("logs".to_owned()).spawn(move || pass_on(&reader, id, &pieces))?;
    let ended = follow(client, id, &received, &interrupted)?.ok_or(LiveError::Interrupted { id })?;
    conclude(&ended)
}

/// What was read, or why it could not be read on.
type Piece = anyhow::Result<Vec<u8>>;

/// Reads logs until they end. It gives up when nobody listens any more.
fn pass_on(client: &Client, id: u64, pieces: &SyncSender<Piece>) {
    let mut send = |lines| pieces.send(Ok(lines)).context("nobody listens");
    if let Err(error) = log_lines::follow(client, id, LogQuery::default(), &mut send) {
        // Whoever listened may have left.
        let _ = pieces.send(Err(error));
    }
}

/// The job when it has ended and everything it wrote is shown; nothing if the user has seen enough.
fn follow(
    client: &Client,
    id: u64,
    pieces: &Receiver<Piece>,
    interrupted: &AtomicBool,
) -> anyhow::Result<Option<JobDetail>> {
    let mut screen = Screen::open();
    let mut told = String::new();
    let mut looked: Option<Instant> = None;
    while !interrupted.load(Ordering::Relaxed) {
        let all_shown = match pieces.recv_timeout(GLANCE) {
            Ok(piece) => {
                screen.show(&piece?)?;
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        if !all_shown && looked.is_some_and(|at| at.elapsed() < LOOK) {
            continue;
        }
        looked = Some(Instant::now());
        let detail = match client.job(id) {
            Ok(detail) => detail,
            // Whoever reads the logs waits for the server, and not for ever.
            Err(error) if error.is_passing() && !all_shown => continue,
            Err(error) => return Err(error.into()),
        };
        let state = state(&detail);
        if state != told {
            output::note(&state);
            told = state;
        }
        if all_shown {
            screen.finish()?;
            return Ok(Some(detail));
        }
    }
    screen.finish()?;
    Ok(None)
}

/// What a user wants to be told of.
fn state(JobDetail { job, spec, .. }: &JobDetail) -> String {
    let on = match (job.gpus(), job.nodes) {
        (0, _) => String::new(),
        (gpus, 0 | 1) => format!(" on {}", count(gpus, "GPU")),
        (gpus, nodes) => format!(" on {} of {}", count(gpus, "GPU"), count(nodes, "node")),
    };
    let batch = job.batch_size.filter(|_| job.replicas > 0).map(|batch| format!(", batch {batch}"));
    let retry = (job.retries > 0).then(|| format!(", retry {} of {}", job.retries, spec.retries));
    let (batch, retry) = (batch.unwrap_or_default(), retry.unwrap_or_default());
    format!("job {} is {}{on}{batch}{retry}", job.id, job.phase.word())
}

fn conclude(JobDetail { job, .. }: &JobDetail) -> anyhow::Result<()> {
    match job.phase {
        Phase::Succeeded => {
            let took = seconds_between(job.submitted_ms, job.ended_ms.unwrap_or(job.phase_since_ms));
            output::note(&format!(
                "job {} took {}, {} of it waiting, and {} of GPU time",
                job.id,
                span(took),
                span(job.queued_s),
                span(job.attained_gpu_s)
            ));
            Ok(())
        }
        phase => Err(LiveError::NotTrained { id: job.id, phase, reason: job.failure.clone() }.into()),
    }
}
