use std::path::{Path, PathBuf};
use std::{env, fs, process};

/// A folder that is gone when the test is over.
pub(crate) struct TestFolder(PathBuf);

impl TestFolder {
    pub(crate) fn new(test: &str) -> Self {
        let path = env::temp_dir().join(format!("pollux-{test}-{}", process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        #[expect(clippy::let_underscore_must_use, reason = "what cannot be deleted costs only its room")]
        let _ = fs::remove_dir_all(&self.0);
    }
}
