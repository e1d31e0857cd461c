use pollux_client::{Client, JobQuery};

use super::LiveError;
use super::text::has_ended;

/// Pages of jobs that are searched for a name, the newest jobs first.
const PAGES_MAX: usize = 10;
const PAGE: u32 = 1_000;

/// The number of a job that is given by it or by name: that of the only live job of that name, or of the newest that
/// ended.
pub(super) fn job_id(client: &Client, job: &str) -> anyhow::Result<u64> {
    if let Ok(id) = job.parse() {
        return Ok(id);
    }
    let mut query = JobQuery { limit: Some(PAGE), ..JobQuery::default() };
    let mut live = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = client.jobs(query)?;
        let mut ended = None;
        for it in page.jobs.iter().filter(|it| it.name == job) {
            if has_ended(it.phase) {
                ended = ended.max(Some(it.id));
            } else {
                live.push(it.id);
            }
        }
        let found = match live[..] {
            [] => ended,
            [id] => Some(id),
            _ => return Err(LiveError::SeveralJobs { name: job.to_owned(), jobs: live }.into()),
        };
        match (found, page.next_before) {
            (Some(id), _) => return Ok(id),
            (None, Some(before)) => query.before = Some(before),
            (None, None) => break,
        }
    }
    Err(LiveError::UnknownJob(job.to_owned()).into())
}
