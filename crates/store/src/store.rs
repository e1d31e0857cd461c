use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pollux_engine::EngineState;
use pollux_job::JobId;
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use crate::format::{FORMAT, write};
use crate::recovery::{self, Recovered};
use crate::{Batch, Reader, StoreError, TokenHolder, schema, v2};

pub(crate) const DATABASE: &str = "pollux.db";
const LOCK: &str = "lock";
/// Older history is forgotten.
const HISTORY_MAX: u64 = 200_000;

/// A state folder that this process has to itself.
#[derive(Debug)]
pub struct Store {
    pub(crate) connection: Connection,
    file: PathBuf,
    /// Of the last record written.
    sequence: u64,
    epoch: u64,
    /// Held for as long as the store is open.
    _lock: File,
}

impl Store {
    /// Opens or makes the journal in a folder, and reads back what it holds.
    pub fn open(folder: &Path) -> Result<(Self, Recovered), StoreError> {
        let refused = |reason| StoreError::Folder { folder: folder.to_owned(), reason };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(refused)?;
        let lock = lock(folder)?;
        let file = folder.join(DATABASE);
        // Made by hand, so that nobody else can read it for a moment.
        OpenOptions::new().create(true).append(true).mode(0o600).open(&file).map_err(refused)?;
        schema::check(&file)?;
        let mut connection = Connection::open(&file)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        // Secrets of jobs that have ended are overwritten, not only forgotten.
        connection.pragma_update(None, "secure_delete", true)?;
        schema::migrate(&mut connection)?;
        let recovered = recovery::recover(&mut connection)?;
        let sequence = recovered.sequence;
        let epoch = schema::next_epoch(&connection)?;
        Ok((Self { connection, file, sequence, epoch, _lock: lock }, recovered))
    }

    /// The number of this opening: higher than that of every one before it, so that orders of an earlier scheduler can
    /// be told from those of this one.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Makes a batch durable: when this returns, it survives. When it fails, nothing of it was written.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        let sequence = write_records(&transaction, batch, self.sequence)?;
        write_jobs(&transaction, batch)?;
        write_replicas(&transaction, batch)?;
        write_groups(&transaction, batch)?;
        write_tokens(&transaction, batch)?;
        write_history(&transaction, batch)?;
        transaction.commit()?;
        self.sequence = sequence;
        Ok(())
    }

    /// Records in the journal since the last snapshot, and before.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Keeps a state that contains all records so far, and forgets those.
    pub fn save_snapshot(&mut self, state: &EngineState) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        transaction.execute(
            "INSERT OR REPLACE INTO snapshot (only_one, sequence, version, state) VALUES (1, ?1, ?2, ?3)",
            params![number(self.sequence), FORMAT, write(&v2::Snapshot::from(state))?],
        )?;
        transaction.execute("DELETE FROM journal WHERE sequence <= ?1", [number(self.sequence)])?;
        transaction.execute(
            "DELETE FROM history WHERE sequence <= (SELECT max(sequence) FROM history) - ?1",
            [number(HISTORY_MAX)],
        )?;
        transaction.commit()?;
        Ok(())
    }

    /// Lets the database grow to so many pages and no further: a small disk, for tests.
    #[doc(hidden)]
    pub fn limit_pages(&self, pages: u32) {
        drop(self.connection.pragma_update(None, "max_page_count", pages));
    }

    /// How a job ended; nothing of one that has not, or never was.
    pub fn ended_phase(&self, job: JobId) -> Result<Option<String>, StoreError> {
        let mut query = self.connection.prepare_cached("SELECT phase FROM jobs WHERE id = ?1")?;
        Ok(query.query_row([number(job.0)], |row| row.get(0)).optional()?.flatten())
    }

    /// A way to read beside whoever writes.
    pub fn reader(&self) -> Result<Reader, StoreError> {
        Reader::open(&self.file)
    }
}

/// `SQLite` has signed numbers; ours never get there.
pub(crate) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn lock(folder: &Path) -> Result<File, StoreError> {
    let refused = |reason| StoreError::Folder { folder: folder.to_owned(), reason };
    let open = OpenOptions::new().create(true).append(true).mode(0o600).open(folder.join(LOCK));
    let file = open.map_err(refused)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Busy { folder: folder.to_owned() }),
        Err(TryLockError::Error(reason)) => Err(refused(reason)),
    }
}

fn write_records(transaction: &Transaction<'_>, batch: &Batch, mut sequence: u64) -> Result<u64, StoreError> {
    let mut insert =
        transaction.prepare_cached("INSERT INTO journal (sequence, version, record) VALUES (?1, ?2, ?3)")?;
    for record in &batch.records {
        sequence += 1;
        insert.execute(params![number(sequence), FORMAT, write(&v2::Record::from(record))?])?;
    }
    Ok(sequence)
}

fn write_jobs(transaction: &Transaction<'_>, batch: &Batch) -> Result<(), StoreError> {
    let mut insert = transaction
        .prepare_cached("INSERT INTO jobs (id, submitted_ms, request_version, request) VALUES (?1, ?2, ?3, ?4)")?;
    for job in &batch.submitted {
        let spec = write(&v2::Spec::from(&job.spec))?;
        insert.execute(params![number(job.id.0), number(job.submitted.0), FORMAT, spec])?;
    }
    let mut end = transaction.prepare_cached(
        "UPDATE jobs SET ended_ms = ?2, phase = ?3, summary_version = ?4, summary = ?5 WHERE id = ?1",
    )?;
    let mut forget_secrets = transaction.prepare_cached(&format!("{} AND id = ?1", schema::FORGET_SECRETS))?;
    let mut forget_tokens = transaction.prepare_cached("DELETE FROM tokens WHERE job = ?1")?;
    for job in &batch.ended {
        let (phase, summary) = (job.summary.state.to_string(), write(&v2::Summary::from(&job.summary))?);
        end.execute(params![number(job.id.0), number(job.ended.0), phase, FORMAT, summary])?;
        forget_tokens.execute([number(job.id.0)])?;
        forget_secrets.execute([number(job.id.0)])?;
    }
    Ok(())
}

fn write_replicas(transaction: &Transaction<'_>, batch: &Batch) -> Result<(), StoreError> {
    let mut insert =
        transaction.prepare_cached("INSERT INTO replicas (id, job, version, detail) VALUES (?1, ?2, ?3, ?4)")?;
    for replica in &batch.replicas_ordered {
        let detail = write(&v2::Replica::from(replica))?;
        insert.execute(params![number(replica.id), number(replica.job.0), FORMAT, detail])?;
    }
    if let Some(last) = batch.replicas_ordered.iter().map(|replica| replica.id).max() {
        transaction.execute("UPDATE last_replica SET id = max(id, ?1)", [number(last)])?;
    }
    let mut delete = transaction.prepare_cached("DELETE FROM replicas WHERE id = ?1")?;
    for &replica in &batch.replicas_gone {
        delete.execute([number(replica)])?;
    }
    Ok(())
}

fn write_groups(transaction: &Transaction<'_>, batch: &Batch) -> Result<(), StoreError> {
    let mut replace =
        transaction.prepare_cached("INSERT OR REPLACE INTO groups (job, version, detail) VALUES (?1, ?2, ?3)")?;
    let mut delete = transaction.prepare_cached("DELETE FROM groups WHERE job = ?1")?;
    for (job, group) in &batch.groups {
        match group {
            Some(group) => replace.execute(params![number(job.0), FORMAT, write(group)?])?,
            None => delete.execute([number(job.0)])?,
        };
    }
    let mut insert = transaction.prepare_cached("INSERT INTO nodes (id, version, name) VALUES (?1, ?2, ?3)")?;
    for (node, row) in &batch.nodes {
        insert.execute(params![node.0, FORMAT, write(row)?])?;
    }
    Ok(())
}

fn write_tokens(transaction: &Transaction<'_>, batch: &Batch) -> Result<(), StoreError> {
    let mut of_job =
        transaction.prepare_cached("INSERT INTO tokens (digest, job, label) VALUES (?1, ?2, 'workers')")?;
    let mut of_user = transaction.prepare_cached(
        "INSERT INTO tokens (digest, label, role, created_ms, expires_ms, used_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for token in &batch.tokens {
        match &token.holder {
            TokenHolder::Job(job) => of_job.execute(params![token.digest, number(job.0)])?,
            TokenHolder::User(user) => {
                let [created, expires, used] =
                    [user.created, user.expires, user.used].map(|at| at.map(|at| number(at.0)));
                of_user.execute(params![token.digest, user.name, user.role.word(), created, expires, used])?
            }
        };
    }
    let mut delete = transaction.prepare_cached("DELETE FROM tokens WHERE digest = ?1")?;
    for digest in &batch.tokens_gone {
        delete.execute([digest])?;
    }
    let mut use_token = transaction.prepare_cached("UPDATE tokens SET used_ms = ?2 WHERE digest = ?1")?;
    for (digest, used) in &batch.tokens_used {
        use_token.execute(params![digest, number(used.0)])?;
    }
    Ok(())
}

fn write_history(transaction: &Transaction<'_>, batch: &Batch) -> Result<(), StoreError> {
    let mut insert = transaction
        .prepare_cached("INSERT INTO history (sequence, at_ms, job, version, text) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for entry in &batch.history {
        let job = entry.job.map(|job| number(job.0));
        insert.execute(params![number(entry.sequence), number(entry.at.0), job, FORMAT, write(&entry.event)?])?;
    }
    Ok(())
}
