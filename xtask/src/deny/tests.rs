use std::path::Path;

use super::*;

const RULES: &str = r#"
[graph]
all-features = true
[licenses]
allow = ["MIT", "Apache-2.0 WITH LLVM-exception"]
exceptions = [{ crate = "roots", allow = ["CDLA"] }]
[bans]
multiple-versions = "deny"
skip = [{ crate = "old@1.0.0", reason = "known" }]
deny = [{ crate = "bad", reason = "it is bad" }]
[sources]
unknown-registry = "deny"
unknown-git = "deny"
allow-registry = ["https://index"]
"#;

fn package(name: &str, version: &str, license: &str, source: &str) -> Package {
    let source = (!source.is_empty()).then(|| source.to_owned());
    let id = format!("{name} {version}");
    Package { id, name: name.to_owned(), version: version.to_owned(), license: Some(license.to_owned()), source }
}

/// What is found of these beside some that use everything the rules allow.
fn check(packages: &[Package], expected: &[&str]) {
    let fine = [
        package("ours", "1.0.0", "MIT", ""),
        package("tool", "1.0.0", "Apache-2.0 WITH LLVM-exception", "registry+https://index"),
        package("roots", "1.0.0", "CDLA", "registry+https://index"),
        package("old", "1.0.0", "MIT", "registry+https://index"),
        package("old", "2.0.0", "GPL-3.0 OR (MIT AND MIT)", "registry+https://index"),
    ];
    let packages: Vec<Package> = fine.into_iter().chain(packages.iter().cloned()).collect();
    let nodes = packages.iter().map(|package| Node { id: package.id.clone() }).collect();
    let workspace_members = ["ours 1.0.0".to_owned()].into();
    let metadata = Metadata { packages, workspace_members, resolve: Resolve { nodes } };
    assert_eq!(findings(&toml::from_str(RULES).unwrap(), &metadata), expected);
}

#[test]
fn this_workspace_depends_on_nothing_that_it_should_not() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    assert_eq!(deny(&root).unwrap(), Vec::<String>::new());
}

#[test]
fn what_is_allowed_is_not_mentioned() {
    check(&[], &[]);
}

#[test]
fn licenses_bans_versions_and_sources_are_refused_by_name() {
    let index = "registry+https://index";
    let accepted = "expected MIT, Apache-2.0 WITH LLVM-exception";
    check(
        &[package("free", "1.0.0", "GPL-3.0", index)],
        &[&format!("free 1.0.0 has the license \"GPL-3.0\"; {accepted}")],
    );
    check(
        &[package("half", "1.0.0", "MIT AND CDLA", index)],
        &[&format!("half 1.0.0 has the license \"MIT AND CDLA\"; {accepted}")],
    );
    let unnamed = Package { license: None, ..package("mute", "1.0.0", "", index) };
    check(&[unnamed], &[&format!("mute 1.0.0 names no license; {accepted}")]);
    check(&[package("bad", "1.0.0", "MIT", index)], &["bad 1.0.0 is banned: it is bad"]);
    check(
        &[package("old", "3.0.0", "MIT", index)],
        &["old 2.0.0 and 3.0.0: expected one version, or all but one in skip of deny.toml"],
    );
    check(
        &[package("fork", "1.0.0", "MIT", "git+https://somewhere")],
        &["fork 1.0.0 comes from git+https://somewhere; expected https://index"],
    );
    check(
        &[package("beside", "1.0.0", "MIT", "")],
        &["beside 1.0.0 comes from a folder outside the workspace; expected https://index"],
    );
}

#[test]
fn what_nobody_needs_any_more_is_named() {
    let metadata =
        Metadata { packages: Vec::new(), workspace_members: BTreeSet::new(), resolve: Resolve { nodes: Vec::new() } };
    let expected = [
        "license \"Apache-2.0 WITH LLVM-exception\" is allowed and nothing needs it; delete it from deny.toml",
        "license \"MIT\" is allowed and nothing needs it; delete it from deny.toml",
        "old@1.0.0 is skipped and not there; delete it from deny.toml",
    ];
    assert_eq!(findings(&toml::from_str(RULES).unwrap(), &metadata), expected);
}

#[test]
fn settings_that_are_not_carried_out_are_refused() {
    for (setting, other) in [
        ("all-features = true", "all-features = false"),
        ("multiple-versions = \"deny\"", "multiple-versions = \"warn\""),
        ("unknown-git = \"deny\"", "unknown-git = \"allow\""),
        ("[graph]", "[advisories]\n[graph]"),
    ] {
        assert!(toml::from_str::<Rules>(&RULES.replace(setting, other)).is_err(), "{other}");
    }
}

#[test]
fn expressions_that_make_no_sense_are_refused() {
    for wrong in ["", "MIT OR", "OR MIT", "(MIT", "MIT)", "MIT MIT", "MIT WITH", "AND"] {
        assert!(!is_accepted(wrong, &|_| true), "{wrong}");
    }
    assert!(is_accepted("MIT/Apache-2.0", &|one| one == "Apache-2.0"));
    assert!(!is_accepted("MIT OR Zlib AND ISC", &|one| one == "Zlib"));
}
