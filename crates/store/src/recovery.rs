use pollux_policy::{JobId, NodeId, Timestamp};
use rusqlite::{Connection, Row, params};

use crate::store::number;
use crate::{JobRow, Record, ReplicaRow, StoreError, SubmittedJob, TokenRow};

/// What a state folder holds.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The last state that was kept.
    pub snapshot: Option<Snapshot>,
    /// What happened since, in order.
    pub records: Vec<Record>,
    /// Jobs that had not ended, by number.
    pub live_jobs: Vec<SubmittedJob>,
    /// Replicas that were ordered and not seen to be gone, by number.
    pub replicas: Vec<ReplicaRow>,
    /// The groups of jobs, by job.
    pub groups: Vec<(JobId, String)>,
    /// Tokens that open something.
    pub tokens: Vec<TokenRow>,
    /// Every node that ever joined, by number.
    pub nodes: Vec<(NodeId, String)>,
    /// The highest number of any job, also of those that are over.
    pub last_job: Option<JobId>,
    /// The highest number of any replica, also of those that are gone; 0 for none.
    pub last_replica: u64,
    /// The highest number in the history; 0 for none.
    pub last_history: u64,
    /// The number of a damaged last record that was set aside.
    pub damaged: Option<u64>,
    pub(crate) sequence: u64,
}

/// A state that contains all records up to a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The number.
    pub sequence: u64,
    /// The state, in the caller's own words.
    pub state: String,
}

pub(crate) fn recover(connection: &mut Connection) -> Result<Recovered, StoreError> {
    let snapshot = connection
        .prepare("SELECT sequence, state FROM snapshot")?
        .query_map([], |row| Ok(Snapshot { sequence: unsigned(row, 0)?, state: row.get(1)? }))?
        .next()
        .transpose()?;
    let (records, damaged, last) = records(connection)?;
    let live_jobs = connection
        .prepare("SELECT id, submitted_ms, request FROM jobs WHERE ended_ms IS NULL ORDER BY id")?
        .query_map([], submitted)?
        .collect::<Result<_, _>>()?;
    let replicas = connection
        .prepare("SELECT id, job, detail FROM replicas ORDER BY id")?
        .query_map([], |row| {
            Ok(ReplicaRow { id: unsigned(row, 0)?, job: JobId(unsigned(row, 1)?), detail: row.get(2)? })
        })?
        .collect::<Result<_, _>>()?;
    let groups = connection
        .prepare("SELECT job, detail FROM groups ORDER BY job")?
        .query_map([], |row| Ok((JobId(unsigned(row, 0)?), row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let token = |row: &Row<'_>| {
        let job: Option<i64> = row.get(1)?;
        let job = job.and_then(|job| u64::try_from(job).ok()).map(JobId);
        Ok(TokenRow { digest: row.get(0)?, job, label: row.get(2)? })
    };
    let tokens = connection
        .prepare("SELECT digest, job, label FROM tokens ORDER BY digest")?
        .query_map([], token)?
        .collect::<Result<_, _>>()?;
    let nodes = connection
        .prepare("SELECT id, name FROM nodes ORDER BY id")?
        .query_map([], |row| Ok((NodeId(row.get(0)?), row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let highest = |query| connection.query_row(query, [], |row| row.get::<_, Option<i64>>(0));
    let last_job = highest("SELECT max(id) FROM jobs")?.and_then(|id| u64::try_from(id).ok()).map(JobId);
    let last_history = highest("SELECT max(sequence) FROM history")?.and_then(|last| u64::try_from(last).ok());
    let last_replica = highest("SELECT id FROM last_replica")?.and_then(|last| u64::try_from(last).ok()).unwrap_or(0);
    let sequence = last.max(snapshot.as_ref().map_or(0, |snapshot| snapshot.sequence));
    let last_history = last_history.unwrap_or(0);
    Ok(Recovered {
        snapshot,
        records,
        live_jobs,
        replicas,
        groups,
        tokens,
        nodes,
        last_job,
        last_replica,
        last_history,
        damaged,
        sequence,
    })
}

/// The journal, the number of a damaged last record, and the highest number there is. A record that was being written
/// when the machine died may be damaged; nobody was told that it is there.
fn records(connection: &mut Connection) -> Result<(Vec<Record>, Option<u64>, u64), StoreError> {
    let rows: Vec<(u64, String)> = connection
        .prepare("SELECT sequence, record FROM journal ORDER BY sequence")?
        .query_map([], |row| Ok((unsigned(row, 0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let last = rows.last().map_or(0, |(sequence, _)| *sequence);
    let mut records = Vec::with_capacity(rows.len());
    for (sequence, text) in rows {
        match serde_json::from_str(&text) {
            Ok(record) => records.push(record),
            Err(_) if sequence == last => {
                let transaction = connection.transaction()?;
                transaction.execute(
                    "INSERT INTO damaged (sequence, record) VALUES (?1, ?2)",
                    params![number(sequence), text],
                )?;
                transaction.execute("DELETE FROM journal WHERE sequence = ?1", [number(sequence)])?;
                transaction.commit()?;
                return Ok((records, Some(sequence), last));
            }
            Err(reason) => return Err(StoreError::Damaged { sequence, reason }),
        }
    }
    Ok((records, None, last))
}

/// The first three columns of a job.
pub(crate) fn submitted(row: &Row<'_>) -> rusqlite::Result<SubmittedJob> {
    Ok(SubmittedJob { id: JobId(unsigned(row, 0)?), submitted: Timestamp(unsigned(row, 1)?), request: row.get(2)? })
}

/// The six columns of a job.
pub(crate) fn job(row: &Row<'_>) -> rusqlite::Result<JobRow> {
    let submitted = submitted(row)?;
    let ended = match row.get::<_, Option<i64>>(3)? {
        None => None,
        Some(_) => Some(crate::EndedJob {
            id: submitted.id,
            ended: Timestamp(unsigned(row, 3)?),
            phase: row.get(4)?,
            summary: row.get(5)?,
        }),
    };
    Ok(JobRow { submitted, ended })
}

pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}
