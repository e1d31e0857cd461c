//! Images without a registry: archives in the format of `docker save`, made of static programs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::error::{TestbedError, at};
use crate::requirements::BUSYBOX;

/// The size of everything in a tar archive is a multiple of this.
const BLOCK: usize = 512;

/// An image that is made here. Its tag says that no registry has it, so pods need `imagePullPolicy: Never`.
#[derive(Clone, Debug)]
pub struct Image {
    name: String,
    entrypoint: Vec<String>,
    files: Vec<(String, Entry)>,
}

#[derive(Clone, Debug)]
enum Entry {
    Folder { mode: u32 },
    Program(PathBuf),
    Link(String),
}

impl Image {
    /// An image with nothing in it but folders that programs expect, such as `pollux.test/trainer:1`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let folders = [("tmp", 0o1777), ("bin", 0o755), ("etc", 0o755)];
        let files = folders.map(|(path, mode)| (path.to_owned(), Entry::Folder { mode })).to_vec();
        Self { name: name.to_owned(), entrypoint: Vec::new(), files }
    }

    /// A shell and the usual tools: `pollux.test/busybox:1`, on every node from its start.
    #[must_use]
    pub fn busybox() -> Self {
        let tools = "sh,cat,chmod,cp,date,dd,echo,env,false,grep,head,hostname,id,kill,ls,mkdir,mv,nc,printf,ps,rm,sed,seq,\
                     sleep,stat,tail,test,touch,tr,true,wc,wget,yes";
        let image = Self::new("pollux.test/busybox:1").program("bin/busybox", Path::new(BUSYBOX));
        tools.split(',').fold(image, |image, tool| image.link(&format!("bin/{tool}"), "busybox"))
    }

    /// What holds the namespaces of a pod together.
    pub(crate) fn pause() -> Self {
        Self::new("pollux.test/pause:1").program("bin/busybox", Path::new(BUSYBOX)).entrypoint(&[
            "/bin/busybox",
            "sleep",
            "2147483647",
        ])
    }

    /// Adds a static executable of this machine.
    #[must_use]
    pub fn program(mut self, path: &str, source: &Path) -> Self {
        self.files.push((path.to_owned(), Entry::Program(source.to_owned())));
        self
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn link(mut self, path: &str, target: &str) -> Self {
        self.files.push((path.to_owned(), Entry::Link(target.to_owned())));
        self
    }

    /// Sets what runs where a pod says nothing.
    #[must_use]
    pub fn entrypoint(mut self, words: &[&str]) -> Self {
        self.entrypoint = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// The name by which pods ask for it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes the image as a file that container runtimes import.
    ///
    /// # Errors
    ///
    /// If a program cannot be read or is not static, or the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), TestbedError> {
        let (configuration, layer) = self.parts()?;
        let (configuration_name, layer_name) = (digest(&configuration) + ".json", digest(&layer) + ".tar");
        let manifest = json!([{"Config": configuration_name, "RepoTags": [self.name], "Layers": [layer_name]}]);
        let mut archive = Archive::default();
        archive.add(&configuration_name, '0', 0o644, "", &configuration);
        archive.add(&layer_name, '0', 0o644, "", &layer);
        archive.add("manifest.json", '0', 0o644, "", manifest.to_string().as_bytes());
        fs::write(path, archive.finish()).map_err(at(path))
    }

    /// What describes it, and its only layer.
    pub(crate) fn parts(&self) -> Result<(Vec<u8>, Vec<u8>), TestbedError> {
        let mut layer = Archive::default();
        for (name, entry) in &self.files {
            match entry {
                Entry::Folder { mode } => layer.add(name, '5', *mode, "", &[]),
                Entry::Link(target) => layer.add(name, '2', 0o777, target, &[]),
                Entry::Program(source) => layer.add(name, '0', 0o755, "", &read_static(source)?),
            }
        }
        let layer = layer.finish();
        let configuration = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))]},
        });
        Ok((configuration.to_string().into_bytes(), layer))
    }
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a program that needs no other file to run: an image has no libraries.
fn read_static(path: &Path) -> Result<Vec<u8>, TestbedError> {
    let program = fs::read(path).map_err(at(path))?;
    match asks_for_interpreter(&program) {
        Some(false) => Ok(program),
        Some(true) => Err(TestbedError::NotStatic(path.display().to_string())),
        None => Err(at(path)(io::Error::other("expected a 64-bit ELF executable"))),
    }
}

/// Whether an ELF file names a loader of libraries; `None` if it is no such file.
fn asks_for_interpreter(program: &[u8]) -> Option<bool> {
    const INTERPRETER: u32 = 3;
    let number = |offset: usize, size: usize| {
        let bytes = program.get(offset..offset.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte)))
    };
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, entry_size, entries) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for entry in 0..entries {
        let offset = usize::try_from(table.checked_add(entry * entry_size)?).ok()?;
        if number(offset, 4)? == u64::from(INTERPRETER) {
            return Some(true);
        }
    }
    Some(false)
}

/// A tar archive whose bytes follow from its content: no times, no owners.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
}

impl Archive {
    fn add(&mut self, path: &str, kind: char, mode: u32, target: &str, content: &[u8]) {
        assert!(path.len() < 100 && target.len() < 100, "{path}: names of up to 99 bytes fit into a header");
        let mut header = [0_u8; BLOCK];
        let mut put = |offset: usize, text: &str| header[offset..offset + text.len()].copy_from_slice(text.as_bytes());
        put(0, path);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{:011o}", content.len()));
        put(136, "00000000000");
        // The sum of the header counts itself as blanks.
        put(148, "        ");
        put(156, &kind.to_string());
        put(157, target);
        put(257, "ustar\x0000");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend(header);
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK, 0);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn an_archive_is_read_by_tar() {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = Archive::default();
        archive.add("tmp", '5', 0o1777, "", &[]);
        archive.add("bin/program", '0', 0o755, "", &[b'x'; 700]);
        archive.add("bin/sh", '2', 0o777, "program", &[]);
        let path = folder.path().join("layer.tar");
        fs::write(&path, archive.finish()).unwrap();
        let listing = Command::new("tar").arg("-tvf").arg(&path).env("TZ", "UTC").output().unwrap();
        let listing = String::from_utf8(listing.stdout).unwrap();
        let words: Vec<Vec<&str>> = listing.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words,
            [
                vec!["drwxrwxrwt", "0/0", "0", "1970-01-01", "00:00", "tmp"],
                vec!["-rwxr-xr-x", "0/0", "700", "1970-01-01", "00:00", "bin/program"],
                vec!["lrwxrwxrwx", "0/0", "0", "1970-01-01", "00:00", "bin/sh", "->", "program"],
            ],
        );
    }

    #[test]
    fn a_program_that_needs_libraries_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = Image::new("pollux.test/x:1").program("bin/x", Path::new("/bin/ls")).save(&folder.path().join("x"));
        assert_eq!(
            error.unwrap_err().to_string(),
            "/bin/ls: expected a static executable (-C target-feature=+crt-static)",
        );
    }

    #[test]
    fn a_script_is_no_program_of_an_image() {
        assert_eq!(asks_for_interpreter(b"#!/bin/sh\n"), None);
        assert_eq!(asks_for_interpreter(b"\x7fELF\x02\x01"), None);
    }
}
