//! Checks on the text and the names of single files.

use super::Finding;
use super::repo::Repo;

const LINES_MAX: usize = 800;

/// Languages we write programs in.
const PROGRAMS: &[&str] = &["go", "rs", "py", "pyi", "ts", "svelte"];

/// Kinds of file besides [`PROGRAMS`] that are searched for leftovers; prose may name them.
const SCRIPTS: &[&str] = &["css", "Dockerfile", "html", "js", "Makefile", "run", "sh", "toml", "yaml", "yml"];

// Written in pieces here and in the tests, so that these checks pass on their own source.
const LEFTOVERS: &[&str] =
    &[concat!("FIX", "ME"), concat!("TO", "DO"), concat!("XX", "X"), concat!("dbg", "!("), concat!("todo", "!(")];

const MACHINE_PATHS: &[&str] = &[concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];

const LOBBIES: &[&str] = &["utils", "common", "helpers", "misc", "types", "manager"];

/// How files begin that a program writes, which nobody reads from one end to the other.
const WRITTEN_BY_A_PROGRAM: &str = "// Written by `";

/// Programs stay short enough to be read in one sitting.
pub(super) fn check_length(repo: &Repo) -> Vec<Finding> {
    programs(repo)
        .filter(|(_, text)| !text.starts_with(WRITTEN_BY_A_PROGRAM))
        .map(|(path, text)| (path, length(path, text)))
        .filter(|&(_, lines)| lines > LINES_MAX)
        .map(|(path, lines)| {
            let message = format!("{lines} lines; at most {LINES_MAX}, split the file by noun");
            Finding::new(path, LINES_MAX + 1, message)
        })
        .collect()
}

/// No note to oneself and no debugging aid stays behind.
pub(super) fn check_leftovers(repo: &Repo) -> Vec<Finding> {
    let searched = repo.files.iter().filter(|(path, _)| {
        let kind = kind(path);
        PROGRAMS.contains(&kind) || SCRIPTS.contains(&kind)
    });
    search(searched, LEFTOVERS, is_word, |leftover| format!("{leftover} is left over; finish it or open an issue"))
}

/// Nothing that is checked in works on one machine only.
pub(super) fn check_machine_paths(repo: &Repo) -> Vec<Finding> {
    // After these a path is not absolute: `../x/`, `~/x/`, `${HOME}/x/`, `example.com/x/`.
    let continues = |before: char| is_word(before) || "._-~}".contains(before);
    search(repo.files.iter(), MACHINE_PATHS, continues, |folder| {
        format!("{folder} is a folder of one machine; use a path from the root of the repository")
    })
}

/// A file or module is named after what it holds.
pub(super) fn check_names(repo: &Repo) -> Vec<Finding> {
    let lobby = |path: &str, line: usize, name: &str| {
        let message = format!("{name} could hold anything; name what it holds");
        LOBBIES.contains(&name).then(|| Finding::new(path, line, message))
    };
    let by_path = programs(repo).flat_map(|(path, _)| {
        let stem = path.rsplit_once('.').map_or(path, |(stem, _)| stem);
        stem.split('/').filter_map(move |name| lobby(path, 1, name))
    });
    let inline = programs(repo).filter(|(path, _)| kind(path) == "rs").flat_map(|(path, text)| {
        modules(text).filter(|module| module.inline).filter_map(move |module| lobby(path, module.line, module.name))
    });
    by_path.chain(inline).collect()
}

/// A `mod` line.
pub(super) struct Module<'text> {
    pub(super) name: &'text str,
    pub(super) line: usize,
    /// Whether its body follows, instead of lying in a file of its own.
    pub(super) inline: bool,
}

/// The modules that a Rust file declares at its top level, where rustfmt starts them at column one.
pub(super) fn modules(text: &str) -> impl Iterator<Item = Module<'_>> {
    text.lines().enumerate().filter_map(|(idx, line)| {
        let item = match line.strip_prefix("pub") {
            Some(rest) => match rest.strip_prefix('(') {
                Some(scope) => scope.split_once(')')?.1.trim_start(),
                None => rest.trim_start(),
            },
            None => line,
        };
        let name = item.strip_prefix("mod ")?;
        let (name, rest) = name.split_at(name.find(|letter| !is_word(letter))?);
        let inline = match rest.trim_start().chars().next()? {
            ';' => false,
            '{' => true,
            _ => return None,
        };
        Some(Module { name, line: idx + 1, inline })
    })
}

fn programs(repo: &Repo) -> impl Iterator<Item = (&str, &str)> {
    let files = repo.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
    files.filter(|(path, _)| PROGRAMS.contains(&kind(path)))
}

/// The extension, or the name of a file without one.
fn kind(path: &str) -> &str {
    path.rsplit(['/', '.']).next().unwrap_or(path)
}

fn length(path: &str, text: &str) -> usize {
    // Clippy lets nothing follow a test module, so the file's own code ends where it starts.
    let tests = modules(text).find(|module| module.inline && module.name == "tests");
    match tests {
        Some(tests) if kind(path) == "rs" => {
            let before: Vec<_> = text.lines().take(tests.line - 1).collect();
            let attributes = before.iter().rev().take_while(|line| line.starts_with("#[")).count();
            let code = before.len() - attributes;
            if before[code..].contains(&"#[cfg(test)]") { code } else { text.lines().count() }
        }
        _ => text.lines().count(),
    }
}

/// Finds lines that hold one of the `patterns`, unless a letter before it that `continues` makes it
/// a part of something longer.
fn search<'repo>(
    files: impl Iterator<Item = (&'repo String, &'repo String)>,
    patterns: &[&str],
    continues: impl Fn(char) -> bool,
    message: impl Fn(&str) -> String,
) -> Vec<Finding> {
    let holds = |line: &str, pattern: &str| {
        line.match_indices(pattern).any(|(start, _)| {
            let before = line[..start].chars().next_back();
            let after = line[start + pattern.len()..].chars().next();
            let goes_on = pattern.ends_with(is_word) && after.is_some_and(is_word);
            !before.is_some_and(&continues) && !goes_on
        })
    };
    let mut findings = Vec::new();
    for (path, text) in files {
        for (idx, line) in text.lines().enumerate() {
            let found = patterns.iter().filter(|pattern| holds(line, pattern));
            findings.extend(found.map(|pattern| Finding::new(path, idx + 1, message(pattern))));
        }
    }
    findings
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}
