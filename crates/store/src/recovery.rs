use pollux_engine::EngineState;
use pollux_job::JobId;
use pollux_policy::{NodeId, Timestamp};
use rusqlite::{Connection, Row, params};

use crate::format::{Formats, Unread, Written};
use crate::store::number;
use crate::{GroupRow, NodeRow, Record, ReplicaRow, Role, StoreError, SubmittedJob, TokenHolder, TokenRow, UserToken};

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
    pub groups: Vec<(JobId, GroupRow)>,
    /// Tokens that open something.
    pub tokens: Vec<TokenRow>,
    /// Every node that ever joined, by number.
    pub nodes: Vec<(NodeId, NodeRow)>,
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
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The number.
    pub sequence: u64,
    /// The state.
    pub state: EngineState,
    /// The policy whose memory was kept with it and cannot be read, so that it is left out.
    pub unreadable_policy: Option<String>,
}

/// Reads everything, and changes nothing but a damaged last record.
pub(crate) fn recover(connection: &mut Connection) -> Result<Recovered, StoreError> {
    let formats = Formats::of(connection)?;
    let snapshot = snapshot(connection, &formats)?;
    let (records, damaged, last) = records(connection, &formats)?;
    let live_jobs = live_jobs(connection, &formats)?;
    let replicas = replicas(connection, &formats)?;
    let groups = groups(connection, &formats)?;
    let nodes = nodes(connection, &formats)?;
    let tokens = tokens(connection)?;
    let highest = |query| {
        let number = connection.query_row(query, [], |row| row.get::<_, Option<i64>>(0))?;
        Ok::<_, StoreError>(number.and_then(|number| u64::try_from(number).ok()))
    };
    let last_job = highest("SELECT max(id) FROM jobs")?.map(JobId);
    let last_history = highest("SELECT max(sequence) FROM history")?.unwrap_or(0);
    let last_replica = highest("SELECT id FROM last_replica")?.unwrap_or(0);
    let sequence = last.max(snapshot.as_ref().map_or(0, |snapshot| snapshot.sequence));
    if let Some(record) = damaged {
        set_aside(connection, record)?;
    }
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

fn snapshot(connection: &Connection, formats: &Formats) -> Result<Option<Snapshot>, StoreError> {
    let rows = rows(connection, "SELECT sequence, version, state FROM snapshot", |row| {
        Ok((unsigned(row, 0)?, written(row, 1)?))
    })?;
    let read = |(sequence, written)| {
        let (state, unreadable_policy) =
            formats.state(written).map_err(|unread| unread.of(|| "the snapshot".into()))?;
        Ok(Snapshot { sequence, state, unreadable_policy })
    };
    rows.into_iter().next().map(read).transpose()
}

/// The journal, the number of a damaged last record, and the highest number there is. A record that was being written
/// when the machine died may be damaged; nobody was told that it is there. One in a later format is not: it is refused,
/// wherever it is.
fn records(connection: &Connection, formats: &Formats) -> Result<(Vec<Record>, Option<u64>, u64), StoreError> {
    let rows = rows(connection, "SELECT sequence, version, record FROM journal ORDER BY sequence", |row| {
        Ok((unsigned(row, 0)?, written(row, 1)?))
    })?;
    let last = rows.last().map_or(0, |(sequence, _)| *sequence);
    let mut records = Vec::with_capacity(rows.len());
    for (sequence, written) in rows {
        match formats.record(written) {
            Ok(record) => records.push(record),
            Err(Unread::Damaged(_)) if sequence == last => return Ok((records, Some(sequence), last)),
            Err(Unread::Damaged(reason)) => return Err(StoreError::Damaged { sequence, reason }),
            Err(unread) => return Err(unread.of(|| format!("record {sequence} of the journal"))),
        }
    }
    Ok((records, None, last))
}

fn set_aside(connection: &mut Connection, record: u64) -> Result<(), StoreError> {
    let transaction = connection.transaction()?;
    transaction.execute(
        "INSERT INTO damaged (sequence, record, version) SELECT sequence, record, version FROM journal WHERE sequence = ?1",
        params![number(record)],
    )?;
    transaction.execute("DELETE FROM journal WHERE sequence = ?1", params![number(record)])?;
    transaction.commit()?;
    Ok(())
}

fn live_jobs(connection: &Connection, formats: &Formats) -> Result<Vec<SubmittedJob>, StoreError> {
    let query = "SELECT id, submitted_ms, request_version, request FROM jobs WHERE ended_ms IS NULL ORDER BY id";
    let rows = rows(connection, query, |row| Ok((unsigned(row, 0)?, unsigned(row, 1)?, written(row, 2)?)))?;
    let read = |(id, submitted, written)| {
        let spec = formats.spec(written).map_err(|unread| unread.of(|| format!("job {id}")))?;
        Ok(SubmittedJob { id: JobId(id), submitted: Timestamp(submitted), spec })
    };
    rows.into_iter().map(read).collect()
}

fn replicas(connection: &Connection, formats: &Formats) -> Result<Vec<ReplicaRow>, StoreError> {
    let query = "SELECT id, job, version, detail FROM replicas ORDER BY id";
    let rows = rows(connection, query, |row| Ok((unsigned(row, 0)?, unsigned(row, 1)?, written(row, 2)?)))?;
    let read = |(id, job, written)| {
        let replica = formats.replica(written).map_err(|unread| unread.of(|| format!("replica {id}")))?;
        Ok(replica.row(id, JobId(job)))
    };
    rows.into_iter().map(read).collect()
}

fn groups(connection: &Connection, formats: &Formats) -> Result<Vec<(JobId, GroupRow)>, StoreError> {
    let query = "SELECT job, version, detail FROM groups ORDER BY job";
    let rows = rows(connection, query, |row| Ok((unsigned(row, 0)?, written(row, 1)?)))?;
    let read = |(job, written)| {
        let group = formats.group(written).map_err(|unread| unread.of(|| format!("the group of job {job}")))?;
        Ok((JobId(job), group))
    };
    rows.into_iter().map(read).collect()
}

fn nodes(connection: &Connection, formats: &Formats) -> Result<Vec<(NodeId, NodeRow)>, StoreError> {
    let rows = rows(connection, "SELECT id, version, name FROM nodes ORDER BY id", |row| {
        Ok((row.get::<_, u32>(0)?, written(row, 1)?))
    })?;
    let read = |(id, written)| {
        let node = formats.node(written).map_err(|unread| unread.of(|| format!("node {id}")))?;
        Ok((NodeId(id), node))
    };
    rows.into_iter().map(read).collect()
}

fn tokens(connection: &Connection) -> Result<Vec<TokenRow>, StoreError> {
    let query = "SELECT digest, job, label, role, created_ms, expires_ms, used_ms FROM tokens ORDER BY digest";
    rows(connection, query, |row| {
        let digest = row.get(0)?;
        if row.get::<_, Option<i64>>(1)?.is_some() {
            return Ok(TokenRow { digest, holder: TokenHolder::Job(JobId(unsigned(row, 1)?)) });
        }
        let at = |column| {
            Ok::<_, rusqlite::Error>(
                row.get::<_, Option<i64>>(column)?.map(|_| unsigned(row, column)).transpose()?.map(Timestamp),
            )
        };
        let word: String = row.get(3)?;
        // Whatever it was meant to open, it must not open more.
        let role = Role::of_word(&word).ok_or_else(|| {
            let reason = format!("role {word:?} of a token: expected admin, member or viewer");
            rusqlite::Error::FromSqlConversionFailure(3, rusqlite::types::Type::Text, reason.into())
        })?;
        let user = UserToken { name: row.get(2)?, role, created: at(4)?, expires: at(5)?, used: at(6)? };
        Ok(TokenRow { digest, holder: TokenHolder::User(user) })
    })
}

fn rows<T>(
    connection: &Connection,
    query: &str,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    Ok(connection.prepare(query)?.query_map([], read)?.collect::<Result<_, _>>()?)
}

/// A format and the text after it.
pub(crate) fn written(row: &Row<'_>, column: usize) -> rusqlite::Result<Written> {
    Ok((row.get(column)?, row.get(column + 1)?))
}

pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}
