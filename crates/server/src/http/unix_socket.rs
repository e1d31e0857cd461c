//! Users of this machine, who are known by the socket over which they ask.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf, absolute};
use std::process::Stdio;
use std::time::Duration;

use pollux_api::Role;
use tokio::process::Command;
use tokio::time::timeout;
use tracing::warn;

use crate::tokens::LOCAL_TOKEN;
use crate::{ServerError, User};

const USERS: &str = "/etc/passwd";
/// How long a directory of accounts may take.
const DIRECTORY: Duration = Duration::from_secs(5);
/// What `getent` ends with where there is no such account.
const NO_SUCH_KEY: i32 = 2;

/// Where users of this machine connect.
#[derive(Clone, Debug)]
pub struct SocketFile {
    file: PathBuf,
    /// Whether others than the account of the scheduler may connect.
    is_shared: bool,
}

impl SocketFile {
    /// For the account that runs the scheduler, and root.
    pub fn own(state_dir: &Path) -> Self {
        Self { file: state_dir.join("run/socket"), is_shared: false }
    }

    /// For all users of the machine.
    pub const fn shared(file: PathBuf) -> Self {
        Self { file, is_shared: true }
    }
}

/// A socket that is ours, before anybody is answered.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: UnixListener,
    file: PathBuf,
}

impl UnixSocket {
    /// Makes the socket. What a scheduler has left that was killed is replaced.
    pub(crate) fn bind(settings: &SocketFile) -> Result<Option<Self>, ServerError> {
        let SocketFile { file, is_shared } = settings;
        let refused = |reason: String| ServerError::Socket { file: file.clone(), reason };
        match Self::make(file, *is_shared) {
            Ok(socket) => Ok(Some(socket)),
            // Nobody asked for this one, and tokens do without it.
            Err(error) if !is_shared => {
                warn!(file = %file.display(), %error, "no socket: commands use the token of the state folder");
                Ok(None)
            }
            Err(error) => Err(refused(error.to_string())),
        }
    }

    fn make(file: &Path, is_shared: bool) -> io::Result<Self> {
        let file = absolute(file)?;
        let folder = file.parent().ok_or(ErrorKind::InvalidInput)?;
        if !folder.exists() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            if is_shared {
                fs::set_permissions(folder, Permissions::from_mode(0o755))?;
            }
        }
        if is_shared {
            check_folder(folder)?;
        }
        clear(&file)?;
        let listener = UnixListener::bind(&file)?;
        fs::set_permissions(&file, Permissions::from_mode(if is_shared { 0o666 } else { 0o600 }))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, file })
    }

    /// Where it is.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    pub(crate) fn listen(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.listener.try_clone()?)
    }

    /// Nobody is answered here any more.
    pub(crate) fn remove(self) {
        if let Err(error) = fs::remove_file(&self.file) {
            // The next scheduler replaces it.
            warn!(file = %self.file.display(), %error, "the socket stays");
        }
    }
}

/// Whoever may change a folder could take the place of the scheduler there.
fn check_folder(folder: &Path) -> io::Result<()> {
    let found = folder.metadata()?;
    let is_ours = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    if is_ours && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let reason = "others may write to its folder, and could take its place: expected a folder that only you can write";
    Err(io::Error::new(ErrorKind::PermissionDenied, reason))
}

/// Removes a socket at which nobody answers.
fn clear(file: &Path) -> io::Result<()> {
    let found = match file.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "there is a file that is no socket: give another name"));
    }
    match UnixStream::connect(file) {
        Ok(_) => Err(io::Error::new(ErrorKind::AddrInUse, "another scheduler answers there: give another name")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(file),
        Err(error) => Err(error),
    }
}

/// Somebody with an account on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalUser(pub(crate) User);

impl LocalUser {
    /// Whose connection it is, as the system says.
    pub(crate) async fn of(stream: &tokio::net::UnixStream) -> io::Result<Self> {
        let uid = stream.peer_cred()?.uid();
        // The token of the state folder is nobody's account.
        let name = Some(name_of(uid).await?).filter(|name| name != LOCAL_TOKEN).unwrap_or_else(|| format!("uid-{uid}"));
        // Whoever may change the scheduler's files may do everything already.
        let is_admin = uid == 0 || uid == rustix::process::geteuid().as_raw();
        let role = if is_admin { Role::Admin } else { Role::Member };
        Ok(Self(User { name, role }))
    }
}

/// What an account is called; one without a name by its number.
async fn name_of(uid: u32) -> io::Result<String> {
    let known = fs::read(USERS).ok().and_then(|users| named(&String::from_utf8_lossy(&users), uid));
    if let Some(name) = known {
        return Ok(name);
    }
    // Accounts of a directory are in no file. One that does not answer must not turn a user into another.
    let mut asking = Command::new("getent");
    asking.args(["passwd", &uid.to_string()]).stdin(Stdio::null()).kill_on_drop(true);
    let asked = match timeout(DIRECTORY, asking.output()).await? {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(format!("uid-{uid}")),
        asked => asked?,
    };
    if asked.status.code() == Some(NO_SUCH_KEY) {
        return Ok(format!("uid-{uid}"));
    }
    named(&String::from_utf8_lossy(&asked.stdout), uid)
        .ok_or_else(|| io::Error::other(format!("getent does not say what account {uid} is called")))
}

/// The name of an account in lines as those of `/etc/passwd`.
fn named(users: &str, uid: u32) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid) && !name.is_empty()).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn accounts_are_called_what_the_system_calls_them() {
        assert_eq!(name_of(0).await.unwrap(), "root");
        assert_eq!(name_of(4_000_000_000).await.unwrap(), "uid-4000000000");
        let users = "root:x:0:0:root:/root:/bin/sh\nada:x:1001:1001::/:/bin/sh\nbroken\n:x:7:7::/:/bin/sh\n";
        assert_eq!(
            [0, 1001, 7, 9].map(|uid| named(users, uid)),
            [Some("root"), Some("ada"), None, None].map(|it| it.map(str::to_owned))
        );
    }

    #[test]
    fn a_socket_that_was_left_is_replaced_and_one_that_is_used_or_something_else_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/socket");
        let make = || UnixSocket::make(&file, true);
        let first = make().unwrap();
        let mode = |file: &Path| file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o666, 0o755));
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let refused = UnixSocket::make(&open.join("socket"), true).unwrap_err().to_string();
        assert!(refused.starts_with("others may write to its folder"), "{refused}");
        assert!(make().unwrap_err().to_string().starts_with("another scheduler answers there"));
        drop(first);
        assert!(file.exists(), "as after a kill");
        make().unwrap().remove();
        assert!(!file.exists());
        fs::write(&file, "mine").unwrap();
        assert!(make().unwrap_err().to_string().starts_with("there is a file that is no socket"));
        assert_eq!(fs::read(&file).unwrap(), b"mine");
        let own = SocketFile::own(&folder.path().join("x".repeat(120)));
        assert!(UnixSocket::bind(&own).unwrap().is_none(), "a path that is too long keeps nobody from starting");
        let shared = UnixSocket::bind(&SocketFile::shared(file.clone())).unwrap_err().to_string();
        assert!(shared.starts_with(&format!("socket {}: there is a file", file.display())), "{shared}");
    }
}
