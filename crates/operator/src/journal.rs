//! What the scheduler writes, as config maps: lots of lines since a copy of the whole, and that copy in pieces.
//!
//! ```text
//!  NAME-journal              which copy counts, and which lot is the first after it
//!  NAME-copy-12-346-0, -1    the pieces of copy 12, with all that was written before lot 346
//!  NAME-lot-345              lines, in the order of the numbers
//! ```
//!
//! There is one history, whoever writes. A writer takes the number of its first lot by an empty one; whoever wrote before finds
//! its next number taken, and a head that another has replaced. Pieces have the number of a lot in their names, which only one
//! writer has.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, fs};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use pollux_backend_kube::INSTANCE_LABEL;
use pollux_server::{CopyError, JournalCopy};
use pollux_store::Batch;
use tokio::runtime::Handle;

use crate::OperatorError;

/// Says which part of a journal a config map is.
const PART_LABEL: &str = "pollux.dev/part";
const LOT: &str = "lot";
const COPY: &str = "copy";
const LINES: &str = "lines";
/// Bytes of a piece: etcd takes 1.5 MiB with everything around it.
const PIECE_BYTES: usize = 700 * 1024;
/// Attempts to read what somebody writes at the same time.
const READS_MAX: u32 = 10;
/// How long the API server may take for one call of the scheduler, which waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);

/// The journal of one scheduler.
pub(crate) struct KubeJournal {
    maps: Api<ConfigMap>,
    instance: String,
    runtime: Handle,
    place: Mutex<Place>,
}

/// Where this writer is.
#[derive(Clone, Debug, Default)]
struct Place {
    next_lot: u64,
    /// The head as it was read or written last, and its version.
    head: Option<(Head, String)>,
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
        Self { maps, instance: instance.to_owned(), runtime, place: Mutex::default() }
    }

    fn head_name(&self) -> String {
        format!("{}-journal", self.instance)
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all that is kept. From now on nobody writes who wrote before.
    pub(crate) async fn take_over(&self) -> Result<Kept, OperatorError> {
        for _ in 0..READS_MAX {
            let head = self.head().await?;
            let first = head.as_ref().map_or(0, |(head, _)| head.first_lot);
            let (text, next) = self.lots(first).await?;
            if !self.claim(next).await? || self.head().await? != head {
                continue;
            }
            let database = match &head {
                Some((head, _)) => Some(self.copy(*head).await?),
                None => None,
            };
            *self.place() = Place { next_lot: next + 1, head };
            let since = whole(&text).lines().map(Batch::from_text).collect::<Result<_, _>>()?;
            return Ok(Kept { database, since });
        }
        Err(OperatorError::NotLeader("somebody else writes the journal all the time".to_owned()))
    }

    /// Takes over where what is kept makes no sense: nobody writes any more who wrote before, and what is written next counts.
    pub(crate) async fn take_over_damaged(&self) -> Result<(), OperatorError> {
        let version = self.maps.get_opt(&self.head_name()).await?.and_then(|map| map.resource_version());
        let highest = |maps: &[ConfigMap], part| maps.iter().filter_map(|map| self.number_of(map, part)).max();
        let lot = highest(&self.list(LOT).await?, LOT).map_or(0, |last| last + 1);
        let copy = highest(&self.list(COPY).await?, COPY).unwrap_or(0);
        if !self.claim(lot).await? {
            return Err(OperatorError::NotLeader("somebody else writes the journal".to_owned()));
        }
        let head = Head { copy, pieces: 0, first_lot: lot };
        *self.place() = Place { next_lot: lot + 1, head: version.map(|version| (head, version)) };
        Ok(())
    }

    /// Keeps a database in the place of all that was there.
    pub(crate) async fn replace_all(&self, database: Vec<u8>) -> Result<(), OperatorError> {
        self.replace_copy(database).await.map_err(|error| match error {
            CopyError::Superseded => OperatorError::NotLeader(error.to_string()),
            CopyError::Unavailable(reason) => OperatorError::NotKept(reason),
        })
    }

    /// What names it to people.
    pub(crate) fn meta_of_head(&self) -> ObjectMeta {
        ObjectMeta { namespace: self.maps.namespace().map(str::to_owned), ..self.meta(self.head_name(), "journal") }
    }

    async fn head(&self) -> Result<Option<(Head, String)>, OperatorError> {
        let Some(map) = self.maps.get_opt(&self.head_name()).await? else { return Ok(None) };
        let head = Head::of(&map).zip(map.resource_version());
        head.map(Some).ok_or_else(|| OperatorError::Journal(format!("{} makes no sense", self.head_name())))
    }

    /// All lines from a lot on, and the number of the lot after the last.
    async fn lots(&self, first: u64) -> Result<(String, u64), OperatorError> {
        let mut lots = BTreeMap::new();
        for map in self.list(LOT).await? {
            let number = self.number_of(&map, LOT);
            let text = map.data.and_then(|mut data| data.remove(LINES));
            lots.extend(number.filter(|number| *number >= first).zip(text));
        }
        joined(first, &lots).map_err(OperatorError::Journal)
    }

    /// Takes the number of a lot, unless somebody has it already.
    async fn claim(&self, number: u64) -> Result<bool, OperatorError> {
        match self.maps.create(&PostParams::default(), &self.lot(number, "")).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn copy(&self, head: Head) -> Result<Vec<u8>, OperatorError> {
        let damaged = |what: String| OperatorError::Journal(what);
        let mut bytes = Vec::new();
        for piece in 0..head.pieces {
            let name = self.piece_name(head, piece);
            let map = self.maps.get_opt(&name).await?.ok_or_else(|| damaged(format!("{name} is missing")))?;
            let data = map.binary_data.and_then(|mut data| data.remove("bytes"));
            bytes.extend(data.ok_or_else(|| damaged(format!("{name} is empty")))?.0);
        }
        Ok(bytes)
    }

    async fn list(&self, part: &str) -> Result<Vec<ConfigMap>, kube::Error> {
        let labels = format!("{INSTANCE_LABEL}={},{PART_LABEL}={part}", self.instance);
        Ok(self.maps.list(&ListParams::default().labels(&labels)).await?.items)
    }

    fn number_of(&self, map: &ConfigMap, part: &str) -> Option<u64> {
        let name = map.name_any();
        name.strip_prefix(&format!("{}-{part}-", self.instance))?.split('-').next()?.parse().ok()
    }

    fn piece_name(&self, Head { copy, first_lot, .. }: Head, piece: u64) -> String {
        format!("{}-{COPY}-{copy}-{first_lot}-{piece}", self.instance)
    }

    fn lot(&self, number: u64, lines: &str) -> ConfigMap {
        let metadata = self.meta(format!("{}-{LOT}-{number}", self.instance), LOT);
        let data = [(LINES.to_owned(), lines.to_owned())].into();
        ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }
    }

    fn meta(&self, name: String, part: &str) -> ObjectMeta {
        let labels = [(INSTANCE_LABEL, self.instance.as_str()), (PART_LABEL, part)];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        ObjectMeta { name: Some(name), labels: Some(labels), ..ObjectMeta::default() }
    }

    async fn append_lots(&self, lines: &[String]) -> Result<(), CopyError> {
        let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        let mut number = self.place().next_lot;
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let piece = &rest[..rest.floor_char_boundary(PIECE_BYTES)];
            let lot = self.lot(number, piece);
            let written = match self.maps.create(&PostParams::default(), &lot).await {
                Ok(_) => piece.len(),
                // An answer that got lost is no failure: then it holds what we wrote, and perhaps more came since.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    let there = self.maps.get(&lot.name_any()).await.map_err(unavailable)?;
                    let lines = there.data.and_then(|mut data| data.remove(LINES)).unwrap_or_default();
                    if lines.is_empty() || !rest.starts_with(&lines) {
                        return Err(CopyError::Superseded);
                    }
                    lines.len()
                }
                Err(error) => return Err(unavailable(error)),
            };
            (number, rest) = (number + 1, &rest[written..]);
        }
        self.place().next_lot = number;
        Ok(())
    }

    async fn replace_copy(&self, database: Vec<u8>) -> Result<(), CopyError> {
        let Place { next_lot: first_lot, head: before } = self.place().clone();
        let copy = before.as_ref().map_or(0, |(head, _)| head.copy + 1);
        let pieces: Vec<&[u8]> = database.chunks(PIECE_BYTES).collect();
        let head = Head { copy, pieces: pieces.len() as u64, first_lot };
        for (number, piece) in (0..).zip(pieces) {
            let name = self.piece_name(head, number);
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
        }
        let version = self.replace_head(head, before.map(|(_, version)| version)).await?;
        self.place().head = Some((head, version));
        self.clean_up(head).await
    }

    /// Has another copy count, if the head is still the one that this writer knows; the version of the new one.
    async fn replace_head(&self, head: Head, before: Option<String>) -> Result<String, CopyError> {
        let mut metadata = self.meta(self.head_name(), "journal");
        metadata.resource_version.clone_from(&before);
        let map = ConfigMap { metadata, data: Some(head.data()), ..ConfigMap::default() };
        let written = match before {
            None => self.maps.create(&PostParams::default(), &map).await,
            Some(_) => self.maps.replace(&self.head_name(), &PostParams::default(), &map).await,
        };
        let map = match written {
            Ok(map) => map,
            // An answer that got lost is no failure.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let there = self.maps.get(&self.head_name()).await.map_err(unavailable)?;
                if Head::of(&there) != Some(head) {
                    return Err(CopyError::Superseded);
                }
                there
            }
            Err(error) => return Err(unavailable(error)),
        };
        Ok(map.resource_version().unwrap_or_default())
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

/// The text of lots from a number on, which must follow each other, and the number after the last.
fn joined(first: u64, lots: &BTreeMap<u64, String>) -> Result<(String, u64), String> {
    let mut text = String::new();
    for (expected, (number, lot)) in (first..).zip(lots) {
        if *number != expected {
            return Err(format!("lot {expected} is missing, but there is lot {number}"));
        }
        text.push_str(lot);
    }
    Ok((text, lots.keys().last().map_or(first, |last| last + 1)))
}

/// Whole lines: the last lot of several may be missing, and what is not whole was not acknowledged.
fn whole(text: &str) -> &str {
    text.rfind('\n').map_or("", |end| &text[..end])
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

#[cfg(test)]
mod tests {
    use kube::Config;

    use super::*;

    /// A journal that nobody asks for anything.
    fn journal(runtime: &tokio::runtime::Runtime) -> KubeJournal {
        let _entered = runtime.enter();
        let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        KubeJournal::new(client, "ns", "pollux", runtime.handle().clone())
    }

    #[test]
    fn a_head_is_read_as_it_was_written_and_one_that_makes_no_sense_is_none() {
        let head = Head { copy: 12, pieces: 2, first_lot: 346 };
        let map = |data: BTreeMap<String, String>| ConfigMap { data: Some(data), ..ConfigMap::default() };
        assert_eq!(Head::of(&map(head.data())), Some(head));
        for key in ["copy", "pieces", "first_lot"] {
            let mut data = head.data();
            data.insert(key.to_owned(), "-1".to_owned());
            assert_eq!(Head::of(&map(data.clone())), None, "{key}");
            data.remove(key);
            assert_eq!(Head::of(&map(data)), None, "{key}");
        }
        assert_eq!(Head::of(&ConfigMap::default()), None);
    }

    #[test]
    fn lots_follow_each_other_and_only_whole_lines_count() {
        let lots = |lots: &[(u64, &str)]| lots.iter().map(|(number, text)| (*number, (*text).to_owned())).collect();
        assert_eq!(joined(7, &BTreeMap::new()), Ok((String::new(), 7)));
        let (text, next) = joined(7, &lots(&[(7, ""), (8, "a\nb"), (9, "c\nd")])).unwrap();
        assert_eq!((whole(&text), next), ("a\nbc", 10), "a line may be in two lots, and the last may be cut off");
        assert_eq!(whole("cut off"), "");
        let missing = joined(7, &lots(&[(7, "a\n"), (9, "b\n")])).unwrap_err();
        assert_eq!(missing, "lot 8 is missing, but there is lot 9");
        assert!(joined(0, &lots(&[(346, "a\n")])).is_err(), "the head is gone that says where they begin");
    }

    #[test]
    fn parts_are_known_by_their_names() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let journal = journal(&runtime);
        let head = Head { copy: 12, pieces: 2, first_lot: 346 };
        let piece = ConfigMap { metadata: journal.meta(journal.piece_name(head, 1), COPY), ..ConfigMap::default() };
        assert_eq!(piece.name_any(), "pollux-copy-12-346-1");
        assert_eq!((journal.number_of(&piece, COPY), journal.number_of(&piece, LOT)), (Some(12), None));
        let lot = journal.lot(345, "a\n");
        assert_eq!((lot.name_any(), journal.number_of(&lot, LOT)), ("pollux-lot-345".to_owned(), Some(345)));
        assert_eq!(lot.labels()[PART_LABEL], LOT);
    }
}
