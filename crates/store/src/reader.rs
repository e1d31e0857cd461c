use std::path::Path;
use std::time::Duration;

use pollux_job::JobId;
use pollux_policy::Timestamp;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Params, Row, params};

use crate::format::{Formats, Unread, Written};
use crate::recovery::{unsigned, written};
use crate::store::number;
use crate::{EndedJob, HistoryEntry, HistoryLine, JobRow, StoreError, SubmittedJob};

const JOB_COLUMNS: &str = "id, submitted_ms, ended_ms, request_version, request, summary_version, summary";

const OWNED: &str = "AND CASE WHEN json_valid(request) THEN request ->> '$.owner' = ?5 END";

/// No index helps to find a part of a name; a hundred thousand are looked through in a moment. Requests that make no
/// sense have none.
const FOUND: &str = "AND (instr(lower(CASE WHEN json_valid(request) THEN
                             CASE request_version WHEN 1 THEN request ->> '$.spec.name' ELSE request ->> '$.name' END
                         END), lower(?4)) > 0
                     OR CAST(id AS TEXT) = ?4)";

/// Which ended jobs are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndedQuery<'a> {
    /// With numbers below.
    pub before: Option<JobId>,
    /// In this phase.
    pub phase: Option<&'a str>,
    /// Of this owner. Jobs of format 1 have none.
    pub owner: Option<&'a str>,
    /// With this in their names, or as their number. Capitals of ASCII make no difference.
    pub search: Option<&'a str>,
}

/// Reads what was committed, beside the process that writes.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    formats: Formats,
}

impl Reader {
    pub(crate) fn open(file: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(file, flags)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.pragma_update(None, "query_only", true)?;
        let formats = Formats::of(&connection)?;
        Ok(Self { connection, formats })
    }

    /// A job, live or ended.
    pub fn job(&self, id: JobId) -> Result<Option<JobRow>, StoreError> {
        let mut query = self.connection.prepare_cached(&format!("SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?1"))?;
        let row = query.query_row([number(id.0)], KeptJob::of).optional()?;
        row.map(|row| row.read(&self.formats)).transpose().map_err(|unread| unread.of(|| id.to_string()))
    }

    /// Ended jobs, the newest first; of one whose row cannot be read its number.
    pub fn ended_jobs(&self, asked: EndedQuery<'_>, limit: usize) -> Result<Vec<Result<JobRow, JobId>>, StoreError> {
        let EndedQuery { before, phase, owner, search } = asked;
        let before = before.map_or(i64::MAX, |before| number(before.0));
        let of_phase = if phase.is_some() { "AND phase = ?3" } else { "AND ?3 IS NULL" };
        let found = if search.is_some() { FOUND } else { "AND ?4 IS NULL" };
        let owned = if owner.is_some() { OWNED } else { "AND ?5 IS NULL" };
        let query = format!(
            "SELECT {JOB_COLUMNS} FROM jobs WHERE ended_ms IS NOT NULL AND id < ?1 {of_phase} {found} {owned}
             ORDER BY id DESC LIMIT ?2"
        );
        self.jobs(&query, params![before, number(limit as u64), phase, search, owner])
    }

    /// The jobs that ended last, the latest first; of one whose row cannot be read its number.
    pub fn last_ended_jobs(&self, limit: usize) -> Result<Vec<Result<JobRow, JobId>>, StoreError> {
        let query = format!(
            "SELECT {JOB_COLUMNS} FROM jobs WHERE ended_ms IS NOT NULL ORDER BY ended_ms DESC, id DESC LIMIT ?1"
        );
        self.jobs(&query, [number(limit as u64)])
    }

    fn jobs(&self, query: &str, parameters: impl Params) -> Result<Vec<Result<JobRow, JobId>>, StoreError> {
        let mut query = self.connection.prepare_cached(query)?;
        let rows = query.query_map(parameters, |row| {
            let kept = KeptJob::of(row)?;
            let id = kept.id;
            Ok(kept.read(&self.formats).map_err(|_| id))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// What happened after a number, in order; to one job, if one is named.
    pub fn history(&self, after: u64, job: Option<JobId>, limit: usize) -> Result<Vec<HistoryLine>, StoreError> {
        self.entries("sequence > ?1 ORDER BY sequence", after, job, limit)
    }

    /// The last of what happened before a number, in order; to one job, if one is named.
    pub fn history_before(
        &self,
        before: u64,
        job: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<HistoryLine>, StoreError> {
        let mut entries = self.entries("sequence < ?1 ORDER BY sequence DESC", before, job, limit)?;
        entries.reverse();
        Ok(entries)
    }

    fn entries(
        &self,
        range: &str,
        bound: u64,
        job: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<HistoryLine>, StoreError> {
        let of_job = if job.is_some() { "job = ?3" } else { "?3 IS NULL" };
        let mut query = self.connection.prepare_cached(&format!(
            "SELECT sequence, at_ms, job, version, text FROM history WHERE {of_job} AND {range} LIMIT ?2"
        ))?;
        let rows =
            query.query_map(params![number(bound), number(limit as u64), job.map(|job| number(job.0))], |row| {
                let job: Option<i64> = row.get(2)?;
                Ok(HistoryEntry {
                    sequence: unsigned(row, 0)?,
                    at: Timestamp(unsigned(row, 1)?),
                    job: job.and_then(|job| u64::try_from(job).ok()).map(JobId),
                    event: self.formats.event(written(row, 3)?),
                })
            })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

/// A job as it is written.
struct KeptJob {
    id: JobId,
    submitted: Timestamp,
    spec: Written,
    ended: Option<(Timestamp, Written)>,
}

impl KeptJob {
    /// Of the columns of a job.
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let ended = match row.get::<_, Option<i64>>(2)? {
            None => None,
            Some(_) => Some((Timestamp(unsigned(row, 2)?), written(row, 5)?)),
        };
        Ok(Self {
            id: JobId(unsigned(row, 0)?),
            submitted: Timestamp(unsigned(row, 1)?),
            spec: written(row, 3)?,
            ended,
        })
    }

    fn read(self, formats: &Formats) -> Result<JobRow, Unread> {
        let Self { id, submitted, spec, ended } = self;
        let submitted = SubmittedJob { id, submitted, spec: formats.spec(spec)? };
        let read = |(ended, summary)| Ok(EndedJob { id, ended, summary: formats.summary(summary)? });
        Ok(JobRow { submitted, ended: ended.map(read).transpose()? })
    }
}
