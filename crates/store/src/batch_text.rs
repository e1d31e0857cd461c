//! A batch as one line of text, and a state folder made from a copy of another: for a scheduler whose disk may be lost.

use std::fs;
use std::path::Path;

use pollux_job::JobId;
use pollux_policy::{NodeId, Timestamp};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use crate::format::{FORMAT, write};
use crate::store::DATABASE;
use crate::{
    Batch, EndedJob, GroupRow, HistoryEntry, HistoryEvent, NodeRow, Role, Store, StoreError, SubmittedJob, TokenHolder,
    TokenRow, UserToken, schema, v2,
};

/// Jobs that are over, and lines of history, that a copy holds. The rest is for people, and may be lost.
const ENDED_COPIED: u32 = 1_000;
const HISTORY_COPIED: u32 = 2_000;

/// All of a batch, in today's format.
#[derive(Serialize, Deserialize)]
struct Text {
    format: i64,
    records: Vec<v2::Record>,
    submitted: Vec<(u64, u64, v2::Spec)>,
    ended: Vec<(u64, u64, v2::Summary)>,
    replicas_ordered: Vec<(u64, u64, v2::Replica)>,
    replicas_gone: Vec<u64>,
    groups: Vec<(u64, Option<GroupRow>)>,
    /// Of jobs; earlier versions wrote those of users here, too, without a job.
    tokens: Vec<([u8; 32], Option<u64>, String)>,
    #[serde(default)]
    tokens_of_users: Vec<UserTokenText>,
    tokens_gone: Vec<[u8; 32]>,
    #[serde(default)]
    tokens_used: Vec<([u8; 32], u64)>,
    nodes: Vec<(u32, NodeRow)>,
    history: Vec<(u64, u64, Option<u64>, HistoryEvent)>,
}

/// A user's token.
#[derive(Serialize, Deserialize)]
struct UserTokenText {
    digest: [u8; 32],
    name: String,
    role: String,
    created_ms: Option<u64>,
    expires_ms: Option<u64>,
    used_ms: Option<u64>,
}

/// Which format a text has, whatever else it holds.
#[derive(Deserialize)]
struct Format {
    format: i64,
}

impl Batch {
    /// As one line, which [`Batch::from_text`] of this and later versions reads.
    pub fn to_text(&self) -> Result<String, StoreError> {
        write(&Text {
            format: FORMAT,
            records: self.records.iter().map(Into::into).collect(),
            submitted: self.submitted.iter().map(|job| (job.id.0, job.submitted.0, (&job.spec).into())).collect(),
            ended: self.ended.iter().map(|job| (job.id.0, job.ended.0, (&job.summary).into())).collect(),
            replicas_ordered: self.replicas_ordered.iter().map(|row| (row.id, row.job.0, row.into())).collect(),
            replicas_gone: self.replicas_gone.clone(),
            groups: self.groups.iter().map(|(job, group)| (job.0, group.clone())).collect(),
            tokens: self.tokens.iter().filter_map(of_job).collect(),
            tokens_of_users: self.tokens.iter().filter_map(of_user).collect(),
            tokens_gone: self.tokens_gone.clone(),
            tokens_used: self.tokens_used.iter().map(|(digest, used)| (*digest, used.0)).collect(),
            nodes: self.nodes.iter().map(|(node, row)| (node.0, row.clone())).collect(),
            history: self
                .history
                .iter()
                .map(|it| (it.sequence, it.at.0, it.job.map(|job| job.0), it.event.clone()))
                .collect(),
        })
    }

    /// What a text holds.
    pub fn from_text(text: &str) -> Result<Self, StoreError> {
        let damaged = |reason| StoreError::Unreadable { what: "a copied batch".to_owned(), reason };
        let Format { format: found } = serde_json::from_str(text).map_err(damaged)?;
        if found != FORMAT {
            return Err(StoreError::NewerRecord { what: "a copied batch".to_owned(), found, supported: FORMAT });
        }
        let text: Text = serde_json::from_str(text).map_err(damaged)?;
        let submitted = |(id, at, spec): (u64, u64, v2::Spec)| SubmittedJob {
            id: JobId(id),
            submitted: Timestamp(at),
            spec: spec.into(),
        };
        let ended = |(id, at, summary): (u64, u64, v2::Summary)| EndedJob {
            id: JobId(id),
            ended: Timestamp(at),
            summary: summary.into(),
        };
        let replica = |(id, job, row): (u64, u64, v2::Replica)| row.row(id, JobId(job));
        let line = |(sequence, at, job, event): (u64, u64, Option<u64>, HistoryEvent)| HistoryEntry {
            sequence,
            at: Timestamp(at),
            job: job.map(JobId),
            event,
        };
        Ok(Self {
            records: text.records.into_iter().map(Into::into).collect(),
            submitted: text.submitted.into_iter().map(submitted).collect(),
            ended: text.ended.into_iter().map(ended).collect(),
            replicas_ordered: text.replicas_ordered.into_iter().map(replica).collect(),
            replicas_gone: text.replicas_gone,
            groups: text.groups.into_iter().map(|(job, group)| (JobId(job), group)).collect(),
            tokens: text
                .tokens
                .into_iter()
                .map(token)
                .chain(text.tokens_of_users.into_iter().map(user_token))
                .collect(),
            tokens_gone: text.tokens_gone,
            tokens_used: text.tokens_used.into_iter().map(|(digest, used)| (digest, Timestamp(used))).collect(),
            nodes: text.nodes.into_iter().map(|(node, row)| (NodeId(node), row)).collect(),
            history: text.history.into_iter().map(line).collect(),
        })
    }
}

fn of_job(row: &TokenRow) -> Option<([u8; 32], Option<u64>, String)> {
    match &row.holder {
        TokenHolder::Job(job) => Some((row.digest, Some(job.0), String::new())),
        TokenHolder::User(_) => None,
    }
}

fn of_user(row: &TokenRow) -> Option<UserTokenText> {
    let TokenHolder::User(user) = &row.holder else { return None };
    let [created_ms, expires_ms, used_ms] = [user.created, user.expires, user.used].map(|at| at.map(|at| at.0));
    let (digest, name, role) = (row.digest, user.name.clone(), user.role.word().to_owned());
    Some(UserTokenText { digest, name, role, created_ms, expires_ms, used_ms })
}

fn token((digest, job, name): ([u8; 32], Option<u64>, String)) -> TokenRow {
    let holder = match job {
        Some(job) => TokenHolder::Job(JobId(job)),
        None => TokenHolder::User(UserToken { name, role: Role::Admin, created: None, expires: None, used: None }),
    };
    TokenRow { digest, holder }
}

fn user_token(text: UserTokenText) -> TokenRow {
    let [created, expires, used] = [text.created_ms, text.expires_ms, text.used_ms].map(|at| at.map(Timestamp));
    // A word of a later version must not open more than it was meant to.
    let role = Role::of_word(&text.role).unwrap_or(Role::Viewer);
    TokenRow {
        digest: text.digest,
        holder: TokenHolder::User(UserToken { name: text.name, role, created, expires, used }),
    }
}

impl Store {
    /// Writes all that it holds into a file that is not there yet, without what only people would miss.
    pub fn copy_to(&self, file: &Path) -> Result<(), StoreError> {
        self.connection.execute("VACUUM INTO ?1", [file.to_string_lossy()])?;
        let copy = Connection::open(file)?;
        copy.execute(
            "DELETE FROM history WHERE sequence <= (SELECT max(sequence) FROM history) - ?1",
            [HISTORY_COPIED],
        )?;
        copy.execute(
            "DELETE FROM jobs WHERE ended_ms IS NOT NULL AND id < (SELECT max(id) FROM jobs) AND id NOT IN
             (SELECT id FROM jobs WHERE ended_ms IS NOT NULL ORDER BY ended_ms DESC LIMIT ?1)",
            [ENDED_COPIED],
        )?;
        copy.execute_batch("VACUUM")?;
        Ok(())
    }

    /// Makes a state folder, in the place of what it held, from a copy of another's database and what was written since,
    /// in order. Whoever opens it has a higher epoch than this one.
    pub fn rebuild(folder: &Path, copy: Option<&[u8]>, since: &[Batch], epoch: u64) -> Result<(), StoreError> {
        let refused = |reason| StoreError::Folder { folder: folder.to_owned(), reason };
        for name in [DATABASE.to_owned(), format!("{DATABASE}-wal"), format!("{DATABASE}-shm")] {
            match fs::remove_file(folder.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(refused(error)),
                Ok(()) | Err(_) => {}
            }
        }
        if let Some(copy) = copy {
            fs::create_dir_all(folder).map_err(refused)?;
            fs::write(folder.join(DATABASE), copy).map_err(refused)?;
        }
        let (mut store, _) = Self::open(folder)?;
        for batch in since {
            store.commit(batch)?;
        }
        schema::raise_epoch(&store.connection, epoch)
    }
}

#[cfg(test)]
mod tests {
    use pollux_engine::Event;
    use pollux_job::JobSpec;

    use super::*;
    use crate::{Record, ReplicaRow};

    fn batches() -> Vec<Batch> {
        let spec = JobSpec { command: vec!["train".to_owned()], working_dir: "/".into(), ..JobSpec::new("a", 1) };
        let at = Timestamp(5);
        let event = Event::JobSubmitted { job: JobId(1), spec: spec.without_launch() };
        let node = NodeRow { name: "n".to_owned(), gpu_type: "A100".to_owned(), gpus: 4, address: String::new() };
        let first = Batch {
            records: vec![Record::Event { at, event }],
            submitted: vec![SubmittedJob { id: JobId(1), submitted: at, spec }],
            nodes: vec![(NodeId(0), node)],
            history: vec![HistoryEntry { sequence: 1, at, job: Some(JobId(1)), event: HistoryEvent::Paused }],
            ..Batch::default()
        };
        let second = Batch {
            replicas_ordered: vec![ReplicaRow {
                id: 7,
                job: JobId(1),
                node: NodeId(0),
                shares_with: None,
                bundle: Some(6),
            }],
            tokens: vec![
                TokenRow { digest: [3; 32], holder: TokenHolder::Job(JobId(1)) },
                TokenRow {
                    digest: [5; 32],
                    holder: TokenHolder::User(UserToken {
                        name: "ada".to_owned(),
                        role: Role::Member,
                        created: Some(Timestamp(1)),
                        expires: Some(Timestamp(9)),
                        used: None,
                    }),
                },
            ],
            tokens_used: vec![([5; 32], Timestamp(7))],
            ..Batch::default()
        };
        vec![first, second]
    }

    #[test]
    fn a_state_folder_is_rebuilt_from_a_copy_and_what_was_written_since() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        let (mut store, _) = Store::open(&first).unwrap();
        let [copied, since] = batches().try_into().unwrap();
        store.commit(&copied).unwrap();
        let file = folder.path().join("copy.db");
        store.copy_to(&file).unwrap();
        store.commit(&since).unwrap();
        drop(store);
        let text = since.to_text().unwrap();
        assert!(!text.contains('\n'));
        Store::rebuild(&second, Some(&fs::read(&file).unwrap()), &[Batch::from_text(&text).unwrap()], 41).unwrap();

        let (lost, expected) = Store::open(&first).unwrap();
        let (rebuilt, found) = Store::open(&second).unwrap();
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
        assert_eq!((lost.epoch(), rebuilt.epoch()), (2, 42));
        drop(rebuilt);
        Store::rebuild(&second, None, &[], 41).unwrap();
        assert_eq!(Store::open(&second).unwrap().1.last_job, None, "what it held is gone");
    }

    #[test]
    fn a_batch_of_a_later_version_is_refused() {
        let refused = Batch::from_text(r#"{"format": 9, "what": 1}"#).unwrap_err().to_string();
        assert!(refused.contains("format 9"), "{refused}");
    }
}
