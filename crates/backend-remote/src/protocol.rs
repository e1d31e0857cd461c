//! What a node and its scheduler say to each other, over one connection that the node opens.
//!
//! A connection begins as a request for [`PATH`] that asks for an upgrade to [`UPGRADE`]; from then on both sides send
//! messages: four bytes of length, then JSON. The node begins with `Hello`. What a side does not know it passes over:
//! fields, and kinds of messages. What changes the meaning of a kind is another protocol, of which both take the lower.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pollux_backend::{Epoch, Exit, LogChunk, LogStart, NodeInfo, Observation, ReplicaId, ReplicaOrder};
use pollux_policy::JobId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What is spoken here.
pub(crate) const PROTOCOL: u32 = 1;
/// What is understood at least.
pub(crate) const PROTOCOL_MIN: u32 = 1;
/// Where nodes ask for a connection.
pub const PATH: &str = "/v1/node-connection";
/// What they ask for instead of HTTP.
pub const UPGRADE: &str = "pollux-node";
/// Each side says something this often.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(4);
/// Whoever is silent for longer is not there any more.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(16);
/// What each side may take for its first words.
pub(crate) const GREETING_MAX: Duration = Duration::from_secs(10);
/// Longer messages are refused. An order is the longest, and is limited where it is submitted.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// What a node says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum FromNode {
    /// First of all.
    Hello(Hello),
    /// A node of this machine takes orders of the scheduler that asked.
    Up { node: NodeInfo },
    /// As in [`Observation`].
    Pending { replica: ReplicaId, reason: String },
    /// As in [`Observation`].
    Started { replica: ReplicaId },
    /// As in [`Observation`].
    StartFailed { replica: ReplicaId, reason: String, retryable: bool },
    /// As in [`Observation`].
    Exited { replica: ReplicaId, exit: Exit },
    /// As in [`Observation`].
    Superseded { by: Epoch },
    /// What was read of a log, or why nothing was.
    Log { request: u64, piece: LogPiece },
    /// Jobs save in a folder of its own there, since it does not see the scheduler's.
    Keeps { folder: String },
    /// A job has saved there, so long ago, what the scheduler has no copy of.
    Saved { job: JobId, age_ms: u64 },
    /// It asks for what a job has saved elsewhere.
    AskSaved { request: u64, ask: SavedAsk },
    /// What it was asked for.
    AnswerSaved { request: u64, answer: SavedAnswer },
    /// It ends at another time than it said.
    Ends(Ending),
    /// It would leave: because nothing runs there, or, `at_once`, because its end has come whatever runs there.
    AsksToLeave {
        #[serde(default)]
        at_once: bool,
    },
    /// It was told to leave, and nothing runs there any more.
    Left,
    /// It is there.
    Alive,
    /// What a later version says.
    #[serde(other)]
    Unknown,
}

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// What it speaks at most.
    pub(crate) protocol: u32,
    /// The version of its program.
    pub(crate) version: String,
    /// The machine's name.
    pub(crate) name: String,
    /// The digest of the secret by which it will be known.
    pub(crate) credential: String,
    /// The scheduler's state that it has joined, if it has: replicas of one mean nothing to another.
    #[serde(default)]
    pub(crate) cluster: Option<String>,
    /// The host under which others reach its replicas.
    pub(crate) address: String,
    /// Its nodes: one, or one for each kind of GPU.
    pub(crate) nodes: Vec<String>,
    /// Replicas of which it keeps anything.
    pub(crate) replicas: Vec<ReplicaId>,
    /// When it ends, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) end: Option<Ending>,
}

/// When a machine ends, counted from when it says so: its clock may be another than the scheduler's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// Until nothing is to be placed there any more.
    pub(crate) drains_in_ms: u64,
    /// Until it is gone, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ends_in_ms: Option<u64>,
}

/// A file that a job has saved, by its path in the job's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedFile {
    pub(crate) path: String,
    pub(crate) bytes: u64,
}

/// What either side asks about what a job has saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "about", rename_all = "snake_case")]
pub(crate) enum SavedAsk {
    /// Which files there are.
    Files { job: JobId },
    /// A part of one.
    Piece { job: JobId, file: String, from: u64, bytes_max: u64 },
    /// SHA-256 of a whole one.
    Digest { job: JobId, file: String },
    /// Nothing: the scheduler has a copy of all that was written up to then, by the clocks of both.
    Taken { job: JobId, there_ns: u64, here_ns: u64 },
}

impl SavedAsk {
    pub(crate) const fn job(&self) -> JobId {
        match self {
            Self::Files { job } | Self::Piece { job, .. } | Self::Digest { job, .. } | Self::Taken { job, .. } => *job,
        }
    }
}

/// What either side answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SavedAnswer {
    /// With the moment of the last change by its own clock, and how long ago that is.
    Files {
        files: Vec<SavedFile>,
        written_ns: u64,
        age_ms: u64,
    },
    Piece {
        base64: String,
    },
    Digest {
        sha256: String,
    },
    Noted,
    Failed(String),
}

/// A piece of a log, as JSON can hold it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogPiece {
    Read { base64: String, next: u64, dropped: u64, ended: bool },
    Failed(String),
}

/// What a scheduler says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum ToNode {
    /// The node is known and will hear orders.
    Welcome { protocol: u32, version: String, cluster: String, checkpoints: Option<SharedFolder> },
    /// It is not; where it was removed, it ends what it still runs.
    Refused {
        reason: String,
        #[serde(default)]
        removed: Option<Leave>,
    },
    /// As in `Backend::adopt`.
    Adopt { epoch: Epoch, replicas: Vec<ReplicaId> },
    /// As in `Backend::start`.
    Start { order: Box<ReplicaOrder>, secrets: BTreeMap<String, String> },
    /// As of a node.
    AskSaved { request: u64, ask: SavedAsk },
    /// As of a node.
    AnswerSaved { request: u64, answer: SavedAnswer },
    /// What a job has saved there is not needed any more.
    DropSaved { epoch: Epoch, job: JobId },
    /// As in `Backend::stop`.
    Stop { epoch: Epoch, replica: ReplicaId, grace_ms: u64 },
    /// As in `Backend::forget`.
    Forget { epoch: Epoch, replica: ReplicaId },
    /// As in `Backend::keep_only`.
    KeepOnly { epoch: Epoch, replicas: Vec<ReplicaId> },
    /// Asks for a piece of a log.
    ReadLog { request: u64, replica: ReplicaId, from: LogPosition, bytes_max: u64 },
    /// The node is to end what it runs, and is no node any more.
    Leave(Leave),
    /// The scheduler is there, and shows this certificate to whoever connects from now on.
    Alive {
        #[serde(default)]
        certificate: Option<String>,
    },
    /// What a later version says.
    #[serde(other)]
    Unknown,
}

/// How a node leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leave {
    /// Who says so.
    pub(crate) epoch: Epoch,
    /// What its replicas may take to save and end.
    pub(crate) grace_ms: u64,
}

/// A folder that every machine must see at the same path, and what is in the file [`SharedFolder::MARK`] there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedFolder {
    pub(crate) path: String,
    pub(crate) mark: String,
}

impl SharedFolder {
    /// Tells a folder from another of the same path.
    pub(crate) const MARK: &'static str = ".pollux-scheduler";
}

/// Where to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogPosition {
    At(u64),
    LastLines(u64),
}

impl From<LogStart> for LogPosition {
    fn from(start: LogStart) -> Self {
        match start {
            LogStart::At(position) => Self::At(position),
            LogStart::LastLines(lines) => Self::LastLines(lines),
        }
    }
}

impl From<LogPosition> for LogStart {
    fn from(position: LogPosition) -> Self {
        match position {
            LogPosition::At(position) => Self::At(position),
            LogPosition::LastLines(lines) => Self::LastLines(lines),
        }
    }
}

impl From<io::Result<LogChunk>> for LogPiece {
    fn from(read: io::Result<LogChunk>) -> Self {
        match read {
            Ok(LogChunk { bytes, next, dropped, ended }) => {
                Self::Read { base64: STANDARD.encode(bytes), next, dropped, ended }
            }
            Err(error) => Self::Failed(error.to_string()),
        }
    }
}

impl From<LogPiece> for io::Result<LogChunk> {
    fn from(piece: LogPiece) -> Self {
        match piece {
            LogPiece::Read { base64, next, dropped, ended } => {
                let bytes = STANDARD.decode(base64).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
                Ok(LogChunk { bytes, next, dropped, ended })
            }
            LogPiece::Failed(reason) => Err(io::Error::other(reason)),
        }
    }
}

impl From<Observation> for FromNode {
    fn from(seen: Observation) -> Self {
        match seen {
            Observation::NodeUp(node) => Self::Up { node },
            Observation::Pending { replica, reason } => Self::Pending { replica, reason },
            Observation::Started { replica } => Self::Started { replica },
            Observation::StartFailed { replica, reason, retryable } => Self::StartFailed { replica, reason, retryable },
            Observation::Exited { replica, exit } => Self::Exited { replica, exit },
            Observation::Superseded { by } => Self::Superseded { by },
            // Of itself a machine says neither.
            Observation::NodeUnreachable { .. } | Observation::NodeGone { .. } => Self::Alive,
        }
    }
}

/// Reads one message; `None` for one of a known kind that makes no sense here.
pub(crate) async fn read<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<T>> {
    let length = from.read_u32().await? as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    // What was announced takes room only as it comes.
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes).await?;
    if bytes.len() < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&bytes)
        .inspect_err(|error| tracing::warn!(%error, "a message of the other side is passed over"))
        .ok())
}

/// Writes one message.
pub(crate) async fn write(to: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length as usize <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "a message that is too long"))?;
    to.write_all(&[&length.to_be_bytes()[..], &bytes].concat()).await?;
    to.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> ToNode {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_version_1_said_is_understood() {
        let hello = r#"{"kind":"hello","protocol":1,"version":"0.1.0","name":"gpu1","credential":"ab",
            "address":"10.0.0.7","nodes":["gpu1"],"replicas":[3,4]}"#;
        let FromNode::Hello(hello) = serde_json::from_str(hello).unwrap() else { panic!("no hello") };
        assert_eq!((hello.name.as_str(), hello.replicas.len(), hello.end), ("gpu1", 2, None));
        for (text, message) in [
            (
                r#"{"kind":"exited","replica":3,"exit":{"code":1}}"#,
                FromNode::Exited { replica: ReplicaId(3), exit: Exit::Code(1) },
            ),
            (r#"{"kind":"superseded","by":7}"#, FromNode::Superseded { by: Epoch(7) }),
            (r#"{"kind":"left"}"#, FromNode::Left),
            (
                r#"{"kind":"ends","drains_in_ms":60000,"ends_in_ms":90000}"#,
                FromNode::Ends(Ending { drains_in_ms: 60_000, ends_in_ms: Some(90_000) }),
            ),
            (r#"{"kind":"asks_to_leave","at_once":false}"#, FromNode::AsksToLeave { at_once: false }),
        ] {
            assert_eq!(serde_json::from_str::<FromNode>(text).unwrap(), message);
            assert_eq!(serde_json::to_string(&message).unwrap(), text);
        }
        let stop = ToNode::Stop { epoch: Epoch(2), replica: ReplicaId(3), grace_ms: 500 };
        assert_eq!(told(r#"{"kind":"stop","epoch":2,"replica":3,"grace_ms":500}"#), stop);
        assert_eq!(told(r#"{"kind":"alive"}"#), ToNode::Alive { certificate: None });
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over() {
        assert_eq!(told(r#"{"kind":"migrate","replica":3,"to":"gpu2"}"#), ToNode::Unknown);
        let forget = ToNode::Forget { epoch: Epoch(1), replica: ReplicaId(2) };
        assert_eq!(told(r#"{"kind":"forget","epoch":1,"replica":2,"softly":true}"#), forget);
        assert_eq!(serde_json::from_str::<FromNode>(r#"{"kind":"left","why":"tired"}"#).unwrap(), FromNode::Left);
    }

    #[test]
    fn an_order_arrives_with_its_secrets() {
        let order: ReplicaOrder = serde_json::from_value(serde_json::json!({
            "replica": 1, "job": 2, "node": "gpu1", "gpus": 1, "shares_with": null, "command": ["true"],
            "working_dir": "/", "environment": {}
        }))
        .unwrap();
        let secrets = BTreeMap::from([("TOKEN".to_owned(), "swordfish".to_owned())]);
        let start = ToNode::Start { order: Box::new(order), secrets };
        assert_eq!(told(&serde_json::to_string(&start).unwrap()), start);
    }

    #[tokio::test]
    async fn messages_come_whole_or_not_at_all() {
        let mut bytes = Vec::new();
        write(&mut bytes, &FromNode::Left).await.unwrap();
        write(&mut bytes, &"no message").await.unwrap();
        let mut rest = &bytes[..];
        assert_eq!(read(&mut rest).await.unwrap(), Some(FromNode::Left));
        assert_eq!(read::<FromNode>(&mut rest).await.unwrap(), None);
        assert_eq!(read::<FromNode>(&mut &bytes[..9]).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let long = read::<FromNode>(&mut &[0xff; 8][..]).await.unwrap_err();
        assert_eq!(long.to_string(), "a message of 4294967295 bytes");
    }

    #[test]
    fn a_piece_of_a_log_keeps_every_byte() {
        let chunk = LogChunk { bytes: vec![0, 255, 10], next: 3, dropped: 1, ended: true };
        let read: io::Result<LogChunk> = LogPiece::from(Ok(chunk.clone())).into();
        assert_eq!(read.unwrap(), chunk);
    }
}
