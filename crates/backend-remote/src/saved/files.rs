//! Files of a job, as they are read for others and gathered from them.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, FileTimes, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pollux_policy::JobId;
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use sha2::{Digest, Sha256};

use crate::members::hex;
use crate::protocol::SavedFile;

/// Files that one job may have.
pub(crate) const FILES_MAX: usize = 20_000;
/// Together they are to fit into one message.
const NAMES_BYTES_MAX: usize = 2 << 20;
/// What is read at once for a digest.
const READ_BYTES: usize = 1 << 20;
/// Ends the name of a folder in which files are gathered.
const GATHERED: &str = "incoming";

/// Folders of jobs, below one.
#[derive(Clone, Debug)]
pub(crate) struct SavedFolders {
    root: PathBuf,
}

/// What a job has saved, and when it wrote there last: nanoseconds since 1970 by the clock of that machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) files: Vec<SavedFile>,
    pub(crate) written_ns: u64,
}

impl SavedFolders {
    pub(crate) const fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn of(&self, job: JobId) -> PathBuf {
        self.root.join(job.0.to_string())
    }

    /// A file or folder beside that of a job.
    pub(crate) fn beside(&self, job: JobId, extension: &str) -> PathBuf {
        self.of(job).with_extension(extension)
    }

    /// Jobs that have a folder.
    pub(crate) fn jobs(&self) -> io::Result<Vec<JobId>> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut jobs = Vec::new();
        for entry in entries {
            let entry = entry?;
            let job = entry.file_name().to_str().and_then(|name| name.parse().ok()).map(JobId);
            jobs.extend(job.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_dir())));
        }
        Ok(jobs)
    }

    /// All files of a job. Links and whatever else is no file are left out; no folder is nothing saved.
    pub(crate) fn list(&self, job: JobId) -> io::Result<Listing> {
        let folder = self.of(job);
        let found = walk(&folder)?.files;
        if found.len() > FILES_MAX {
            return Err(refused(format!("{}: {} files; expected at most {FILES_MAX}", folder.display(), found.len())));
        }
        let mut listing = Listing::default();
        for (path, metadata) in found {
            listing.written_ns = listing.written_ns.max(since_1970(metadata.modified()?));
            let name = path.to_str().ok_or_else(|| refused(format!("{}: its name is not UTF-8", path.display())))?;
            listing.files.push(SavedFile { path: name.to_owned(), bytes: metadata.len() });
        }
        let names: usize = listing.files.iter().map(|file| file.path.len()).sum();
        if names > NAMES_BYTES_MAX {
            return Err(refused(format!(
                "{}: names of {names} bytes; expected at most {NAMES_BYTES_MAX}",
                folder.display()
            )));
        }
        listing.files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(listing)
    }

    pub(crate) fn read(&self, job: JobId, file: &str, from: u64, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut open = open(&self.of(job).join(inner(file)?))?;
        open.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        open.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn digest(&self, job: JobId, file: &str) -> io::Result<String> {
        digest(&self.of(job).join(inner(file)?))
    }

    /// Deletes all of a job.
    pub(crate) fn delete(&self, job: JobId) -> io::Result<()> {
        for folder in [self.of(job), self.beside(job, GATHERED)] {
            found(fs::remove_dir_all(folder))?;
        }
        Ok(())
    }
}

/// Where files of a job are until all of them are there.
#[derive(Debug)]
pub(crate) struct Gathered {
    folder: PathBuf,
    place: PathBuf,
}

impl Gathered {
    /// With what an earlier attempt has left of these files, and nothing else.
    pub(crate) fn begin(folders: &SavedFolders, job: JobId, files: &[SavedFile]) -> io::Result<Self> {
        let gathered = Self { folder: folders.beside(job, GATHERED), place: folders.of(job) };
        make_folder(&gathered.folder)?;
        let wanted: BTreeMap<&Path, u64> = files.iter().map(|file| (Path::new(&file.path), file.bytes)).collect();
        for (path, metadata) in walk(&gathered.folder)?.files {
            if wanted.get(path.as_path()) != Some(&metadata.len()) {
                fs::remove_file(gathered.folder.join(path))?;
            }
        }
        Ok(gathered)
    }

    /// Whether a file of this length is there.
    pub(crate) fn has(&self, file: &SavedFile) -> io::Result<bool> {
        Ok(found(fs::metadata(self.path(file)?))?.is_some())
    }

    pub(crate) fn digest(&self, file: &SavedFile) -> io::Result<String> {
        digest(&self.path(file)?)
    }

    pub(crate) fn create(&self, file: &SavedFile) -> io::Result<File> {
        let path = self.path(file)?;
        path.parent().map_or(Ok(()), make_folder)?;
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
    }

    pub(crate) fn discard(&self, file: &SavedFile) -> io::Result<()> {
        fs::remove_file(self.path(file)?)
    }

    /// They take the place of the job's folder, as if they had been written at that time.
    pub(crate) fn take_place(self, files: &[SavedFile], written: SystemTime) -> io::Result<()> {
        for file in files {
            let file = File::options().write(true).open(self.path(file)?)?;
            file.set_times(FileTimes::new().set_modified(written))?;
            file.sync_all()?;
        }
        for folder in walk(&self.folder)?.folders {
            File::open(folder)?.sync_all()?;
        }
        match renameat_with(CWD, &self.folder, CWD, &self.place, RenameFlags::EXCHANGE) {
            Ok(()) => fs::remove_dir_all(&self.folder)?,
            Err(rustix::io::Errno::NOENT) => fs::rename(&self.folder, &self.place)?,
            Err(error) => return Err(error.into()),
        }
        self.place.parent().map_or(Ok(()), |root| File::open(root)?.sync_all())
    }

    fn path(&self, file: &SavedFile) -> io::Result<PathBuf> {
        Ok(self.folder.join(inner(&file.path)?))
    }
}

/// What is below a folder: files by their paths in it, and folders by their whole paths, itself included.
#[derive(Default)]
struct Walk {
    files: Vec<(PathBuf, Metadata)>,
    folders: Vec<PathBuf>,
}

/// What is renamed or deleted meanwhile may be missing.
fn walk(folder: &Path) -> io::Result<Walk> {
    let mut walk = Walk::default();
    let mut ahead = vec![PathBuf::new()];
    while let Some(inside) = ahead.pop() {
        let path = folder.join(&inside);
        let Some(entries) = found(fs::read_dir(&path))? else { continue };
        walk.folders.push(path);
        for entry in entries {
            let entry = entry?;
            let Some(metadata) = found(entry.metadata())? else { continue };
            let path = inside.join(entry.file_name());
            if metadata.is_dir() {
                ahead.push(path);
            } else if metadata.is_file() {
                walk.files.push((path, metadata));
            }
        }
    }
    Ok(walk)
}

fn digest(path: &Path) -> io::Result<String> {
    let (mut file, mut digest, mut buffer) = (open(path)?, Sha256::new(), vec![0; READ_BYTES]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&digest.finalize())),
            read => digest.update(&buffer[..read]),
        }
    }
}

/// Opens a file that is no link.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

/// A path that stays within its folder, whoever says it.
fn inner(path: &str) -> io::Result<&Path> {
    let inner = Path::new(path);
    let is_inner = !path.is_empty() && inner.components().all(|part| matches!(part, Component::Normal(_)));
    if is_inner { Ok(inner) } else { Err(refused(format!("{path:?}: expected a path within the job's folder"))) }
}

fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn found<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn refused(reason: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

pub(crate) fn since_1970(time: SystemTime) -> u64 {
    let passed = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)
}
