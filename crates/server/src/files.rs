//! Small files of the state folder that nobody else may read, and that are there whole or not at all.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::{ServerError, tokens};

/// A token that is shorter could be guessed.
const TOKEN_BYTES_MIN: usize = 32;

/// Replaces a file.
pub(crate) fn write(file: &Path, text: &str) -> Result<(), ServerError> {
    let attempt = || -> io::Result<()> {
        let aside = file.with_extension("new");
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(aside, file)
    };
    attempt().map_err(|reason| ServerError::File { file: file.to_owned(), reason })
}

/// The user's token, made if there is none.
pub(crate) fn token(file: &Path) -> Result<String, ServerError> {
    let failed = |reason| ServerError::File { file: file.to_owned(), reason };
    match fs::read_to_string(file) {
        Ok(text) => {
            fs::set_permissions(file, Permissions::from_mode(0o600)).map_err(failed)?;
            let token = text.trim();
            let is_token = token.len() >= TOKEN_BYTES_MIN && token.bytes().all(|byte| byte.is_ascii_graphic());
            if is_token { Ok(token.to_owned()) } else { Err(ServerError::NoToken { file: file.to_owned() }) }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let token = tokens::random().map_err(ServerError::Random)?;
            write(file, &format!("{token}\n"))?;
            Ok(token)
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_read_by_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let first = token(&file).unwrap();
        let mode = || file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((first.len(), mode()), (64, 0o600));
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert_eq!((token(&file).unwrap(), mode()), (first, 0o600));
        fs::write(&file, "short").unwrap();
        assert!(matches!(token(&file), Err(ServerError::NoToken { .. })));
    }
}
