//! The tables, and how those of earlier versions become today's.

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::StoreError;
use crate::recovery::unsigned;

/// Marks the file as ours ("PLLX").
const APPLICATION_ID: i64 = 0x504c_4c58;

/// One step per version; a released one is never edited. A new format of rows is a step, too, be it an empty one: by its
/// number earlier programs refuse the file.
const MIGRATIONS: [&str; 5] = [
    "
    CREATE TABLE journal (sequence INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
    CREATE TABLE damaged (sequence INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
    CREATE TABLE snapshot (
        only_one INTEGER PRIMARY KEY CHECK (only_one = 1), sequence INTEGER NOT NULL, state TEXT NOT NULL
    ) STRICT;
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY, submitted_ms INTEGER NOT NULL, request TEXT NOT NULL, ended_ms INTEGER, phase TEXT, summary TEXT
    ) STRICT;
    CREATE INDEX live_jobs ON jobs (id) WHERE ended_ms IS NULL;
    CREATE INDEX ended_jobs ON jobs (phase, id) WHERE ended_ms IS NOT NULL;
    CREATE TABLE replicas (id INTEGER PRIMARY KEY, job INTEGER NOT NULL, detail TEXT NOT NULL) STRICT;
    CREATE TABLE groups (job INTEGER PRIMARY KEY, detail TEXT NOT NULL) STRICT;
    CREATE TABLE tokens (digest BLOB PRIMARY KEY, job INTEGER, label TEXT NOT NULL) STRICT;
    CREATE INDEX tokens_of_job ON tokens (job) WHERE job IS NOT NULL;
    CREATE TABLE nodes (id INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
    CREATE TABLE history (
        sequence INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, job INTEGER, text TEXT NOT NULL
    ) STRICT;
    CREATE INDEX history_of_job ON history (job, sequence) WHERE job IS NOT NULL;
",
    "
    CREATE TABLE last_replica (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), id INTEGER NOT NULL) STRICT;
    INSERT INTO last_replica SELECT 1, coalesce(max(id), 0) FROM replicas;
",
    // Rows say in which format they are written; those from before are in the first.
    "
    CREATE TABLE epoch (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), epoch INTEGER NOT NULL) STRICT;
    INSERT INTO epoch VALUES (1, 0);
    ALTER TABLE journal ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE damaged ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE snapshot ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE jobs ADD COLUMN request_version INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE jobs ADD COLUMN summary_version INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE replicas ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE groups ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE nodes ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
",
    // So do lines of history. Secrets of jobs that are over are forgotten.
    "
    ALTER TABLE history ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
    UPDATE jobs SET request = json_set(request, '$.secrets',
        json((SELECT json_group_object(key, '') FROM json_each(request, '$.secrets'))))
    WHERE CASE WHEN request_version = 2 AND json_valid(request) THEN json_type(request, '$.secrets') = 'object' END
        AND ended_ms IS NOT NULL;
",
    // Tokens of users from before opened everything, for ever.
    "
    ALTER TABLE tokens ADD COLUMN role TEXT NOT NULL DEFAULT 'admin';
    ALTER TABLE tokens ADD COLUMN created_ms INTEGER;
    ALTER TABLE tokens ADD COLUMN expires_ms INTEGER;
    ALTER TABLE tokens ADD COLUMN used_ms INTEGER;
",
];

/// Of jobs that are over nobody needs the values of secrets any more; their names are shown.
pub(crate) const FORGET_SECRETS: &str = "
    UPDATE jobs SET request = json_set(request, '$.secrets',
        json((SELECT json_group_object(key, '') FROM json_each(request, '$.secrets'))))
    WHERE CASE WHEN request_version = 2 AND json_valid(request) THEN json_type(request, '$.secrets') = 'object' END
        AND ended_ms IS NOT NULL";

const VERSION: i64 = MIGRATIONS.len() as i64;

/// Refuses a file that is not ours or too new, without touching it.
pub(crate) fn check(file: &Path) -> Result<(), StoreError> {
    if !file.exists() {
        return Ok(());
    }
    // Read-write, because a journal that was not closed cannot be opened otherwise; nothing is written.
    let has_log = file.with_extension("db-wal").exists();
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // Whoever closes a journal last would merge the log that a kill has left.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, has_log)?;
    let foreign = |_| StoreError::Foreign { file: file.to_owned() };
    let application: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(foreign)?;
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(foreign)?;
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0)).map_err(foreign)?;
    if application != APPLICATION_ID && (tables > 0 || found != 0) {
        return Err(StoreError::Foreign { file: file.to_owned() });
    }
    if found > VERSION {
        return Err(StoreError::NewerVersion { file: file.to_owned(), found, supported: VERSION });
    }
    Ok(())
}

/// Brings a checked file up to today's version.
pub(crate) fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if found == VERSION {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
    Ok(())
}

/// The number of this start of a scheduler, higher than that of every one before it.
pub(crate) fn next_epoch(connection: &Connection) -> Result<u64, StoreError> {
    let epoch =
        connection.query_row("UPDATE epoch SET epoch = epoch + 1 RETURNING epoch", [], |row| unsigned(row, 0))?;
    Ok(epoch)
}

/// Lets the next start have a higher number than this.
pub(crate) fn raise_epoch(connection: &Connection, epoch: u64) -> Result<(), StoreError> {
    let epoch = i64::try_from(epoch).unwrap_or(i64::MAX - 1);
    connection.execute("UPDATE epoch SET epoch = max(epoch, ?1)", [epoch])?;
    Ok(())
}
