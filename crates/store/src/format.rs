//! Which format a row is written in, and how it becomes what is used today.

use pollux_engine::EngineState;
use pollux_job::JobSpec;
use rusqlite::Connection;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{GroupRow, HistoryEvent, JobSummary, NodeRow, Record, StoreError, UnreadableEvent, v1, v2};

/// What is written today. A folder with rows of another has a schema version of its own, so that earlier programs refuse
/// it as a whole.
pub(crate) const FORMAT: i64 = 2;

/// A row's own number for its format, and its text.
pub(crate) type Written = (i64, String);

/// Why a row cannot be read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// It may make sense to a later version.
    Format(i64),
    /// It makes no sense.
    Damaged(serde_json::Error),
}

impl Unread {
    pub(crate) fn of(self, what: impl FnOnce() -> String) -> StoreError {
        match self {
            Self::Format(found) => StoreError::NewerRecord { what: what(), found, supported: FORMAT },
            Self::Damaged(reason) => StoreError::Unreadable { what: what(), reason },
        }
    }

    fn reason(&self) -> String {
        match self {
            Self::Format(found) => format!("format {found}; expected format {FORMAT} or an earlier one"),
            Self::Damaged(reason) => reason.to_string(),
        }
    }
}

/// Reads rows of every format there was.
#[derive(Debug, Default)]
pub(crate) struct Formats {
    types: v1::GpuTypes,
}

impl Formats {
    /// Knows what format 1 left to the nodes of its time.
    pub(crate) fn of(connection: &Connection) -> Result<Self, StoreError> {
        let mut formats = Self::default();
        let mut nodes = connection.prepare("SELECT id, version, name FROM nodes WHERE version = 1 ORDER BY id")?;
        let rows = nodes.query_map([], |row| Ok((row.get::<_, i64>(0)?, (row.get(1)?, row.get(2)?))))?;
        for row in rows {
            let (id, written) = row?;
            let node = formats.node(written).map_err(|unread| unread.of(|| format!("node {id}")))?;
            formats.types.learn(&node);
        }
        Ok(formats)
    }

    pub(crate) fn record(&self, written: Written) -> Result<Record, Unread> {
        let record: v2::Record = read(written, |record: v1::Record| record.named(&self.types))?;
        Ok(record.into())
    }

    /// A state, and the name of a policy whose memory cannot be read.
    pub(crate) fn state(&self, written: Written) -> Result<(EngineState, Option<String>), Unread> {
        let snapshot: v2::Snapshot = read(written, |snapshot: v1::Snapshot| snapshot.named(&self.types))?;
        Ok(snapshot.into_state())
    }

    pub(crate) fn spec(&self, written: Written) -> Result<JobSpec, Unread> {
        let spec: v2::Spec = read(written, |request: v1::Request| request.into())?;
        Ok(spec.into())
    }

    pub(crate) fn summary(&self, written: Written) -> Result<JobSummary, Unread> {
        let summary: v2::Summary = read(written, |summary: v1::Summary| summary.named(&self.types))?;
        Ok(summary.into())
    }

    pub(crate) fn replica(&self, written: Written) -> Result<v2::Replica, Unread> {
        read(written, |replica: v2::Replica| replica)
    }

    pub(crate) fn group(&self, written: Written) -> Result<GroupRow, Unread> {
        read(written, |group: v1::Group| group.into())
    }

    /// Lines from before they said their format have the shape of today's.
    pub(crate) fn event(&self, written: Written) -> Result<HistoryEvent, UnreadableEvent> {
        let text = written.1.clone();
        read(written, |event: HistoryEvent| event).map_err(|unread| UnreadableEvent { text, reason: unread.reason() })
    }

    pub(crate) fn node(&self, written: Written) -> Result<NodeRow, Unread> {
        read(written, |node: v1::Node| node.into())
    }
}

fn read<Old: DeserializeOwned, New: DeserializeOwned>(
    (format, text): Written,
    upgrade: impl FnOnce(Old) -> New,
) -> Result<New, Unread> {
    match format {
        1 => serde_json::from_str(&text).map(upgrade),
        FORMAT => serde_json::from_str(&text),
        found => return Err(Unread::Format(found)),
    }
    .map_err(Unread::Damaged)
}

/// The text of a row in today's format.
pub(crate) fn write(row: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(row).map_err(|error| {
        StoreError::Database(rusqlite::Error::ToSqlConversionFailure(Box::new(std::io::Error::other(error))))
    })
}
