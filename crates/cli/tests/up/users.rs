//! Two real accounts of the machine share a scheduler over its socket.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::binary::{Run, fresh_folder, run};
use crate::daemon::{Daemon, plain};

/// An account that is there for one test.
struct Account {
    name: String,
    uid: u32,
}

impl Account {
    /// Makes it, where that is possible.
    fn new(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can make accounts");
            return None;
        }
        let name = format!("{name}{}", std::process::id());
        let mut add = Command::new("useradd");
        let made = add.args(["--no-create-home", "--home-dir", "/nonexistent", &name]).stdin(Stdio::null()).status();
        if !made.is_ok_and(|made| made.success()) {
            eprintln!("skipped: useradd makes no account here");
            return None;
        }
        let asked = Command::new("id").args(["-u", &name]).output().unwrap();
        let uid = String::from_utf8(asked.stdout).unwrap().trim().parse().unwrap();
        Some(Self { name, uid })
    }

    /// Runs a command as this user, who knows the socket and nothing else.
    fn pollux(&self, socket: &Path, args: &[&str]) -> Run {
        let mut command = plain(args[0]);
        command.args(&args[1..]).uid(self.uid).gid(self.uid).current_dir("/");
        command.env("HOME", "/nonexistent").env("USER", &self.name).env_remove("XDG_STATE_HOME");
        command.env("POLLUX_URL", format!("unix:{}", socket.display()));
        run(&mut command, b"")
    }

    /// Submits a job that trains for long; returns its number.
    fn submit(&self, socket: &Path) -> String {
        let args = ["submit", "--rigid", "--env", "COLOUR=of-this-user", "-o", "json", "--", "sleep", "600"];
        let job: Value = self.pollux(socket, &args).json();
        assert_eq!(job["owner"], self.name.as_str());
        job["id"].to_string()
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let removed = Command::new("userdel").arg(&self.name).stdin(Stdio::null()).status();
        assert!(removed.unwrap().success(), "{} is removed", self.name);
    }
}

#[test]
fn two_accounts_submit_without_tokens_see_both_jobs_and_change_only_their_own() {
    let Some((first, second)) = Account::new("pxa").zip(Account::new("pxb")) else { return };
    let socket = fresh_folder("up", "two-accounts-socket").join("socket");
    let daemon = Daemon::start_with("two-accounts", &["--socket", socket.to_str().unwrap()]);
    assert!(daemon.said("stderr").contains("users of this machine may submit jobs, which all run as root"));
    let (own, other) = (first.submit(&socket), second.submit(&socket));
    for account in [&first, &second] {
        let list = account.pollux(&socket, &["ps", "-o", "json"]).json();
        let owners: Vec<&str> =
            list["jobs"].as_array().unwrap().iter().map(|job| job["owner"].as_str().unwrap()).collect();
        assert_eq!(owners, [first.name.as_str(), second.name.as_str()]);
    }
    for command in ["cancel", "pause", "resume", "logs"] {
        let refused = first.pollux(&socket, &[command, &other]);
        let said = format!(
            "error: job {other} belongs to \"{}\": \"{}\" may look at it, and only its owner and admins may do this\n",
            second.name, first.name
        );
        assert_eq!((refused.code, refused.stderr), (Some(1), said), "{command}");
    }
    let described = first.pollux(&socket, &["describe", &other, "-o", "json"]);
    assert!(described.code == Some(0) && !described.stdout.contains("COLOUR"), "{}", described.stdout);
    let described = first.pollux(&socket, &["describe", &own, "-o", "json"]);
    assert!(described.stdout.contains("of-this-user"), "{}", described.stdout);
    for args in [&["token", "list"][..], &["drain", "local"], &["prune"], &["token", "create", "me"]] {
        let refused = first.pollux(&socket, args);
        let said = format!("error: {} is a member: this needs an admin\n", first.name);
        assert_eq!((refused.code, refused.stderr.as_str()), (Some(1), said.as_str()), "{args:?}");
    }
    // Neither files nor the socket of the state folder help.
    let state = daemon.state();
    for file in ["token", "pollux.db", "run/socket", "jobs"] {
        let mut look = Command::new("cat");
        let looked = run(look.arg(state.join(file)).uid(first.uid).gid(first.uid), b"");
        assert!(looked.code == Some(1) && looked.stderr.contains("Permission denied"), "{}", looked.stderr);
    }
    assert_eq!(first.pollux(&socket, &["cancel", &own]).code, Some(0));
    // Root is an admin.
    assert_eq!(daemon.pollux(&["cancel", &other]).code, Some(0));
}

#[test]
fn commands_of_the_schedulers_account_use_its_own_socket_and_jobs_are_its_own() {
    let daemon = Daemon::start("own-socket");
    let socket = daemon.state().join("run/socket");
    assert!(socket.exists());
    let named = Command::new("id").arg("-un").output().unwrap();
    let name = String::from_utf8(named.stdout).unwrap();
    let job = daemon.pollux(&["submit", "--rigid", "-o", "json", "--", "true"]).json();
    assert_eq!(job["owner"], name.trim());
    // With a token it is the token's.
    let token = daemon.pollux(&["token"]).stdout;
    let mut submit = daemon.command(&["submit", "--rigid", "-o", "json", "--", "true"]);
    let job = run(submit.env("POLLUX_TOKEN", token.trim()), b"").json();
    assert_eq!(job["owner"], "local");
}
