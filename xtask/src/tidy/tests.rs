use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process};

use super::tidy;

const MODEL_MANIFEST: &str = r#"[package]
name = "pollux-model"

[lints]
workspace = true

[dependencies]
serde = { workspace = true, optional = true }
thiserror.workspace = true

[dev-dependencies]
proptest.workspace = true
"#;

const MODEL_CLIPPY: &str = r#"
disallowed-methods = [
  "std::time::Instant::now",
  { path = "std::time::SystemTime::now", reason = "time is an argument" },
  "std::env::var",
]
disallowed-types = ["std::collections::HashMap", "std::collections::HashSet"]
"#;

const CLI_MANIFEST: &str = "[package]\nname = \"pollux-cli\"\n\n[lints]\nworkspace = true\n";

/// A workspace with nothing to find; a test replaces or adds files.
const CLEAN: &[(&str, &str)] = &[
    ("Cargo.toml", "[workspace]\nmembers = [\"crates/*\"]\n"),
    ("crates/cli/Cargo.toml", CLI_MANIFEST),
    ("crates/cli/src/main.rs", "//! The command.\nfn main() {}\n"),
    ("crates/model/Cargo.toml", MODEL_MANIFEST),
    ("crates/model/clippy.toml", MODEL_CLIPPY),
    ("crates/model/src/lib.rs", "//! Goodput.\nmod shape;\npub(crate) mod fit;\n"),
    ("crates/model/src/shape.rs", "mod nodes; // inside shape/\n"),
    ("crates/model/src/shape/nodes.rs", ""),
    ("crates/model/src/fit/mod.rs", "#[cfg(test)]\nmod tests;\n"),
    ("crates/model/src/fit/tests.rs", ""),
];

struct Folder(PathBuf);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = Self(env::temp_dir().join(format!("tidy-{}-{number}", process::id())));
        for (path, text) in files {
            let path = folder.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn findings(&self) -> String {
        let findings = tidy(&self.0).unwrap();
        findings.iter().map(|finding| format!("{finding}\n")).collect()
    }

    fn error(&self) -> String {
        format!("{:#}", tidy(&self.0).unwrap_err())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Lays `changes` over the clean workspace and compares every finding, one a line.
#[track_caller]
fn check(changes: &[(&str, &str)], expected: &str) {
    let findings = Folder::new(&[CLEAN, changes].concat()).findings();
    assert_eq!(findings.trim_end(), expected);
}

#[test]
fn this_repository_is_tidy() {
    let findings = tidy(&crate::root()).unwrap();
    let report: String = findings.iter().map(|finding| format!("{finding}\n")).collect();
    assert!(findings.is_empty(), "\n{report}");
}

#[test]
fn a_clean_workspace_has_no_findings() {
    check(&[], "");
}

#[test]
fn programs_over_the_limit_are_found() {
    let lines = |count| "x\n".repeat(count);
    check(
        &[
            ("a.py", &lines(800)),
            ("b.py", &lines(801)),
            ("c.svelte", &lines(802)),
            ("d.ts", &lines(803)),
            ("e.csv", &lines(900)),
            ("f.ts", &format!("// Written by `npm run types`.\n{}", lines(900))),
        ],
        "b.py:801: 801 lines; at most 800, split the file by noun\n\
         c.svelte:801: 802 lines; at most 800, split the file by noun\n\
         d.ts:801: 803 lines; at most 800, split the file by noun",
    );
}

#[test]
fn only_inline_rust_tests_are_free_of_the_limit() {
    let lines = |count| "//\n".repeat(count);
    let free = format!("{}#[cfg(test)]\n#[expect(missing_docs)]\nmod tests {{\n{}}}\n", lines(800), lines(800));
    let long = format!("{}#[cfg(test)]\nmod tests {{\n}}\n", lines(801));
    let shipped = format!("mod tests {{\n{}}}\n", lines(800));
    check(
        &[("tests/a.rs", &free), ("tests/b.rs", &long), ("tests/c.rs", &shipped)],
        "tests/b.rs:801: 801 lines; at most 800, split the file by noun\n\
         tests/c.rs:801: 802 lines; at most 800, split the file by noun",
    );
}

#[test]
fn leftovers_are_found_as_whole_words_outside_prose() {
    check(
        &[
            ("a.py", concat!("pass\n# FIX", "ME: later\n")),
            ("tests/a.rs", concat!("todo", "!(\"x\");\ndbg", "!(x);\n")),
            (".ci/run", concat!("# TO", "DO\n")),
            ("Makefile", concat!("# XX", "X\n")),
            ("b.py", concat!("# XX", "XX TO", "DOS\n")),
            ("STYLE.md", concat!("no FIX", "ME\n")),
        ],
        concat!(
            ".ci/run:1: TO",
            "DO is left over; finish it or open an issue\n",
            "Makefile:1: XX",
            "X is left over; finish it or open an issue\n",
            "a.py:2: FIX",
            "ME is left over; finish it or open an issue\n",
            "tests/a.rs:1: todo",
            "!( is left over; finish it or open an issue\n",
            "tests/a.rs:2: dbg",
            "!( is left over; finish it or open an issue"
        ),
    );
}

#[test]
fn machine_paths_are_found_in_every_text_file() {
    let rest = "is a folder of one machine; use a path from the root of the repository";
    check(
        &[
            ("a.md", concat!("see\n`/", "home/me/x`\n")),
            ("b.csv", concat!("/", "root/x\n")),
            ("c.toml", concat!("x = \"/", "work/x\"\n")),
            ("d.md", concat!("../", "work/x ~/", "work/x $HOME/", "work/x host.org/", "home/x\n")),
        ],
        &[concat!("a.md:2: /", "home/"), concat!("b.csv:1: /", "root/"), concat!("c.toml:1: /", "work/")]
            .map(|place| format!("{place} {rest}"))
            .join("\n"),
    );
}

#[test]
fn names_that_could_hold_anything_are_found() {
    check(
        &[
            ("a/utils.py", ""),
            ("b/helpers/x.ts", ""),
            ("c/misc.svelte", ""),
            ("tests/common/mod.rs", ""),
            ("tests/d.rs", "mod manager {}\npub mod types {}\nmod types_of_gpu {}\n"),
            ("docs/common/x.md", ""),
        ],
        "a/utils.py:1: utils could hold anything; name what it holds\n\
         b/helpers/x.ts:1: helpers could hold anything; name what it holds\n\
         c/misc.svelte:1: misc could hold anything; name what it holds\n\
         tests/common/mod.rs:1: common could hold anything; name what it holds\n\
         tests/d.rs:1: manager could hold anything; name what it holds\n\
         tests/d.rs:2: types could hold anything; name what it holds",
    );
}

#[test]
fn rust_files_without_a_mod_line_are_found() {
    check(
        &[
            // A child of the crate root is not a child of `shape`, nor does a body make a file.
            ("crates/model/src/nodes.rs", ""),
            ("crates/model/src/shape/fit.rs", "mod fit {}\n"),
            ("crates/model/src/stray/mod.rs", "mod deep;\n"),
            ("crates/model/src/stray/deep.rs", ""),
            ("crates/cli/src/bin/one.rs", "//! One.\n"),
            ("crates/cli/src/bin/two/main.rs", "//! Two.\nmod part;\n"),
            ("crates/cli/src/bin/two/part.rs", ""),
            ("crates/cli/src/bin/two/stray.rs", ""),
            ("crates/cli/tests/free.rs", ""),
        ],
        &[
            "crates/cli/src/bin/two/stray.rs",
            "crates/model/src/nodes.rs",
            "crates/model/src/shape/fit.rs",
            "crates/model/src/stray/deep.rs",
            "crates/model/src/stray/mod.rs",
        ]
        .map(|path| format!("{path}:1: no module declares this file; add a mod line or delete it"))
        .join("\n"),
    );
}

#[test]
fn crates_without_an_opening_comment_are_found() {
    check(
        &[
            ("crates/cli/src/bin/one.rs", ""),
            ("crates/cli/src/main.rs", "fn main() {}\n//! Late.\n"),
            ("crates/model/src/lib.rs", "//!\nmod shape;\nmod fit;\n"),
        ],
        &["crates/cli/src/bin/one.rs", "crates/cli/src/main.rs", "crates/model/src/lib.rs"]
            .map(|path| format!("{path}:1: no crate comment; open with //! and say what the crate is for"))
            .join("\n"),
    );
}

#[test]
fn lints_and_versions_outside_the_root_are_found() {
    let own = "[package]\nname = \"pollux-cli\"\n\n[lints.clippy]\nall = \"warn\"\n";
    let versions = [
        CLI_MANIFEST,
        "[dependencies]\nanyhow = \"1\"\nclap.workspace = true\n",
        "[dev-dependencies.csv]\nversion = \"1\"\n",
        "[build-dependencies]\ncc = { git = \"x\" }\n",
        "[target.'cfg(unix)'.dependencies]\npollux-model = { path = \"../model\" }\n",
    ]
    .concat();
    let finding = |line, name| {
        format!(
            "crates/cli/Cargo.toml:{line}: {name} has its own version or path; \
             write {name}.workspace = true and the rest in the root"
        )
    };
    check(
        &[("crates/cli/Cargo.toml", own)],
        "crates/cli/Cargo.toml:1: lints are not inherited; write workspace = true under [lints]",
    );
    check(
        &[("crates/cli/Cargo.toml", &versions)],
        &[finding(7, "anyhow"), finding(9, "csv"), finding(12, "cc"), finding(14, "pollux-model")].join("\n"),
    );
}

#[test]
fn forbidden_dependencies_of_pure_crates_are_found() {
    let model = format!("{MODEL_MANIFEST}[target.'cfg(unix)'.dependencies]\nlibc.workspace = true\n");
    let depending_on = |name: &str| format!("[lints]\nworkspace = true\n[dependencies]\n{name}.workspace = true\n");
    check(
        &[
            ("crates/agent/Cargo.toml", &depending_on("pollux-policy")),
            ("crates/agent/clippy.toml", MODEL_CLIPPY),
            ("crates/engine/Cargo.toml", &depending_on("pollux-agent")),
            ("crates/engine/clippy.toml", MODEL_CLIPPY),
            ("crates/model/Cargo.toml", &model),
            ("crates/policy/Cargo.toml", &depending_on("pollux-engine")),
            ("crates/policy/clippy.toml", MODEL_CLIPPY),
        ],
        "crates/agent/Cargo.toml:4: pollux-policy is not allowed in this pure crate; \
         allowed: pollux-model, serde, thiserror, utoipa\n\
         crates/model/Cargo.toml:14: libc is not allowed in this pure crate; \
         allowed: serde, thiserror, utoipa\n\
         crates/policy/Cargo.toml:4: pollux-engine is not allowed in this pure crate; \
         allowed: pollux-job, pollux-model, serde, thiserror, utoipa",
    );
}

#[test]
fn pure_crates_without_their_bans_are_found() {
    let agent = "[lints]\nworkspace = true\n";
    let swapped =
        MODEL_CLIPPY.replace("disallowed-types", "disallowed-macros").replace("std::env::var", "std::env::vars");
    check(
        &[("crates/agent/Cargo.toml", agent), ("crates/model/clippy.toml", &swapped)],
        &[
            ("agent", "std::collections::HashMap", "disallowed-types"),
            ("agent", "std::collections::HashSet", "disallowed-types"),
            ("agent", "std::env::var", "disallowed-methods"),
            ("agent", "std::time::Instant::now", "disallowed-methods"),
            ("agent", "std::time::SystemTime::now", "disallowed-methods"),
            ("model", "std::collections::HashMap", "disallowed-types"),
            ("model", "std::collections::HashSet", "disallowed-types"),
            ("model", "std::env::var", "disallowed-methods"),
        ]
        .map(|(name, path, key)| {
            format!("crates/{name}/clippy.toml:1: {path} is not banned in this pure crate; add it to {key}")
        })
        .join("\n"),
    );
}

#[test]
fn what_git_ignores_is_not_checked() {
    let ignored = [(".gitignore", "/out\n"), ("out/utils.py", ""), ("kept/utils.py", "")];
    let folder = Folder::new(&[CLEAN, &ignored].concat());
    let kept = "kept/utils.py:1: utils could hold anything; name what it holds\n";
    let out = "out/utils.py:1: utils could hold anything; name what it holds\n";
    assert_eq!(folder.findings(), format!("{kept}{out}"));

    let init = Command::new("git").args(["init", "--quiet"]).arg(&folder.0).status();
    assert!(init.unwrap().success());
    assert_eq!(folder.findings(), kept);
}

#[test]
fn what_is_not_text_is_not_checked() {
    let folder = Folder::new(CLEAN);
    fs::write(folder.0.join("a.py"), [concat!("TO", "DO ").as_bytes(), &[0xff]].concat()).unwrap();
    assert_eq!(folder.findings(), "");
}

#[test]
fn a_folder_that_is_no_workspace_is_an_error() {
    let folder = Folder::new(&[("Cargo.toml", "[package]\nname = \"x\"\n")]);
    let root = folder.0.display();
    assert_eq!(folder.error(), format!("{root}: not a workspace; pass the folder whose Cargo.toml has [workspace]"));
}

#[test]
fn a_broken_manifest_is_an_error_of_one_line_that_names_it() {
    let broken = ("crates/cli/Cargo.toml", "[package]\nname = = 1\n");
    let error = Folder::new(&[CLEAN, &[broken]].concat()).error();
    assert!(error.starts_with("crates/cli/Cargo.toml:2: "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_quoted_row_that_the_results_do_not_have_is_found() {
    check(
        &[
            ("results.md", "| a | 1 |\n| b | 2 |\n"),
            ("README.md", "<!-- rows of results.md -->\n| a | 1 |\n| b | 3 |\n<!-- end of rows -->\n| c | 4 |\n"),
        ],
        "README.md:3: not a row of results.md; copy it from there",
    );
}
