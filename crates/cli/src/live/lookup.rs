use pollux_client::{Client, JobQuery};

use super::LiveError;
use super::text::has_ended;

/// Pages of jobs that are searched for a name: live ones, then ended ones, the newest first.
const PAGES_MAX: usize = 20;
const PAGE: u32 = 1_000;

/// The number of a job that is given by it or by name: that of the only live job of that name, or of the newest that
/// ended.
pub(super) fn job_id(client: &Client, job: &str) -> anyhow::Result<u64> {
    if let Ok(id) = job.parse() {
        return Ok(id);
    }
    let mut query = JobQuery { limit: Some(PAGE), ..JobQuery::default() };
    let (mut live, mut ended) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let page = client.jobs(query)?;
        for it in page.jobs.iter().filter(|it| it.name == job) {
            if has_ended(it.phase) {
                ended = ended.max(Some(it.id));
            } else {
                live.push(it.id);
            }
        }
        let all_live_are_known = page.next_after_live.is_none();
        match (&live[..], ended) {
            _ if !all_live_are_known => {}
            ([], Some(id)) | (&[id], _) => return Ok(id),
            ([], None) => {}
            _ => return Err(LiveError::SeveralJobs { name: job.to_owned(), jobs: live }.into()),
        }
        match query.next(&page) {
            Some(next) => query = next,
            None => break,
        }
    }
    Err(LiveError::UnknownJob(job.to_owned()).into())
}
