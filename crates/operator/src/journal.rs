//! What the scheduler writes, as config maps: lots of lines since a copy of the whole, and that copy in pieces.
//!
//! ```text
//!  NAME-journal          which copy counts, and which lot is the first after it
//!  NAME-copy-12-0, -1    the pieces of copy 12
//!  NAME-lot-345          lines, in the order of the numbers
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fmt, fs};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use pollux_server::{CopyError, JournalCopy};
use pollux_store::Batch;
use tokio::runtime::Handle;

use crate::OperatorError;

/// Says which part of a journal a config map is.
const PART_LABEL: &str = "pollux.dev/part";
const INSTANCE_LABEL: &str = "pollux.dev/instance";
const LOT: &str = "lot";
const COPY: &str = "copy";
/// Bytes of a piece: etcd takes 1.5 MiB with everything around it.
const PIECE_BYTES: usize = 700 * 1024;
/// How long the API server may take for one call of the scheduler, which waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);

/// The journal of one scheduler.
pub(crate) struct KubeJournal {
    maps: Api<ConfigMap>,
    instance: String,
    runtime: Handle,
    next_lot: AtomicU64,
}

impl fmt::Debug for KubeJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeJournal").field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// What a journal holds.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) database: Option<Vec<u8>>,
    pub(crate) since: Vec<Batch>,
}

/// Which copy counts, of how many pieces, and the number of the first lot after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    copy: u64,
    pieces: u64,
    first_lot: u64,
}

impl Head {
    fn of(map: &ConfigMap) -> Option<Self> {
        let number = |key: &str| map.data.as_ref()?.get(key)?.parse().ok();
        Some(Self { copy: number("copy")?, pieces: number("pieces")?, first_lot: number("first_lot")? })
    }

    fn data(self) -> BTreeMap<String, String> {
        let Self { copy, pieces, first_lot } = self;
        [("copy", copy), ("pieces", pieces), ("first_lot", first_lot)]
            .map(|(key, value)| (key.to_owned(), value.to_string()))
            .into()
    }
}

impl KubeJournal {
    pub(crate) fn new(client: Client, namespace: &str, instance: &str, runtime: Handle) -> Self {
        let maps = Api::namespaced(client, namespace);
        Self { maps, instance: instance.to_owned(), runtime, next_lot: AtomicU64::new(0) }
    }

    fn head_name(&self) -> String {
        format!("{}-journal", self.instance)
    }

    /// Reads all that is kept. Whoever reads is the one who writes from now on.
    pub(crate) async fn read(&self) -> Result<Kept, OperatorError> {
        let damaged = |what: String| OperatorError::Journal(what);
        let head = match self.maps.get_opt(&self.head_name()).await? {
            None => None,
            Some(map) => Some(Head::of(&map).ok_or_else(|| damaged(format!("{} makes no sense", self.head_name())))?),
        };
        let first = head.map_or(0, |head| head.first_lot);
        let mut lots = BTreeMap::new();
        for map in self.list(LOT).await? {
            let number = self.number_of(&map, LOT);
            let text = map.data.and_then(|mut data| data.remove("lines"));
            lots.extend(number.filter(|number| *number >= first).zip(text));
        }
        let mut text = String::new();
        for (expected, (number, lot)) in (first..).zip(&lots) {
            if *number != expected {
                return Err(damaged(format!("lot {expected} is missing, but there is lot {number}")));
            }
            text.push_str(lot);
        }
        let next = lots.keys().last().map_or(first, |last| last + 1);
        self.next_lot.store(next, Ordering::Relaxed);
        let mut database = None;
        if let Some(head) = head {
            let mut bytes = Vec::new();
            for piece in 0..head.pieces {
                let name = self.piece_name(head.copy, piece);
                let map = self.maps.get_opt(&name).await?.ok_or_else(|| damaged(format!("{name} is missing")))?;
                let data = map.binary_data.and_then(|mut data| data.remove("bytes"));
                bytes.extend(data.ok_or_else(|| damaged(format!("{name} is empty")))?.0);
            }
            database = Some(bytes);
        }
        // The last lot of several may be missing: what is not whole was not acknowledged.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let since = whole.lines().map(Batch::from_text).collect::<Result<_, _>>()?;
        Ok(Kept { database, since })
    }

    async fn list(&self, part: &str) -> Result<Vec<ConfigMap>, kube::Error> {
        let labels = format!("{INSTANCE_LABEL}={},{PART_LABEL}={part}", self.instance);
        Ok(self.maps.list(&ListParams::default().labels(&labels)).await?.items)
    }

    fn number_of(&self, map: &ConfigMap, part: &str) -> Option<u64> {
        let name = map.name_any();
        name.strip_prefix(&format!("{}-{part}-", self.instance))?.split('-').next()?.parse().ok()
    }

    fn piece_name(&self, copy: u64, piece: u64) -> String {
        format!("{}-{COPY}-{copy}-{piece}", self.instance)
    }

    fn meta(&self, name: String, part: &str) -> ObjectMeta {
        let labels = [(INSTANCE_LABEL, self.instance.as_str()), (PART_LABEL, part)];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        ObjectMeta { name: Some(name), labels: Some(labels), ..ObjectMeta::default() }
    }

    async fn append_lots(&self, lines: &[String]) -> Result<(), CopyError> {
        let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        let mut number = self.next_lot.load(Ordering::Relaxed);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let piece = &rest[..rest.floor_char_boundary(PIECE_BYTES)];
            let metadata = self.meta(format!("{}-{LOT}-{number}", self.instance), LOT);
            let data = [("lines".to_owned(), piece.to_owned())].into();
            let lot = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
            let written = match self.maps.create(&PostParams::default(), &lot).await {
                Ok(_) => piece.len(),
                // An answer that got lost is no failure: then it holds what we wrote, and perhaps more came since.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    let there = self.maps.get(&lot.name_any()).await.map_err(unavailable)?;
                    let lines = there.data.and_then(|mut data| data.remove("lines")).unwrap_or_default();
                    if lines.is_empty() || !rest.starts_with(&lines) {
                        return Err(CopyError::Superseded);
                    }
                    lines.len()
                }
                Err(error) => return Err(unavailable(error)),
            };
            (number, rest) = (number + 1, &rest[written..]);
        }
        self.next_lot.store(number, Ordering::Relaxed);
        Ok(())
    }

    async fn replace_copy(&self, database: Vec<u8>) -> Result<(), CopyError> {
        let before = self.maps.get_opt(&self.head_name()).await.map_err(unavailable)?;
        let first_lot = self.next_lot.load(Ordering::Relaxed);
        if before.as_ref().and_then(Head::of).is_some_and(|head| head.first_lot > first_lot) {
            return Err(CopyError::Superseded);
        }
        let copy = before.as_ref().and_then(Head::of).map_or(0, |head| head.copy + 1);
        let mut pieces = 0;
        for piece in database.chunks(PIECE_BYTES) {
            let name = self.piece_name(copy, pieces);
            // An attempt that was broken off may have left one.
            match self.maps.delete(&name, &DeleteParams::default()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(unavailable(error)),
            }
            let data = [("bytes".to_owned(), ByteString(piece.to_vec()))].into();
            let metadata = self.meta(name, COPY);
            let map = ConfigMap { metadata, binary_data: Some(data), ..ConfigMap::default() };
            self.maps.create(&PostParams::default(), &map).await.map_err(unavailable)?;
            pieces += 1;
        }
        let head = Head { copy, pieces, first_lot };
        let mut metadata = self.meta(self.head_name(), "journal");
        metadata.resource_version = before.as_ref().and_then(ResourceExt::resource_version);
        let map = ConfigMap { metadata, data: Some(head.data()), ..ConfigMap::default() };
        let written = match before {
            None => self.maps.create(&PostParams::default(), &map).await,
            Some(_) => self.maps.replace(&self.head_name(), &PostParams::default(), &map).await,
        };
        match written {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => return Err(CopyError::Superseded),
            Err(error) => return Err(unavailable(error)),
        }
        self.clean_up(head).await
    }

    /// Deletes what the newest copy holds. What is left by a failure is deleted after the next one.
    async fn clean_up(&self, head: Head) -> Result<(), CopyError> {
        let is_old = |part: &str, number: u64| match part {
            LOT => number < head.first_lot,
            _ => number < head.copy,
        };
        for part in [LOT, COPY] {
            for map in self.list(part).await.map_err(unavailable)? {
                if self.number_of(&map, part).is_some_and(|number| is_old(part, number)) {
                    // It may be gone already.
                    drop(self.maps.delete(&map.name_any(), &DeleteParams::default()).await);
                }
            }
        }
        Ok(())
    }

    fn wait(&self, work: impl Future<Output = Result<(), CopyError>>) -> Result<(), CopyError> {
        let late = || Err(CopyError::Unavailable(format!("no answer within {} s", PATIENCE.as_secs())));
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| late()) })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn unavailable(error: kube::Error) -> CopyError {
    CopyError::Unavailable(error.to_string())
}

impl JournalCopy for KubeJournal {
    fn append(&self, lines: &[String]) -> Result<(), CopyError> {
        self.wait(self.append_lots(lines))
    }

    fn replace(&self, database: &Path) -> Result<(), CopyError> {
        let bytes = fs::read(database).map_err(|error| CopyError::Unavailable(error.to_string()))?;
        self.wait(self.replace_copy(bytes))
    }
}
