//! What an operator reads on stderr.

use rustix::process::Signal;
use serde_json::Value;

use crate::daemon::Daemon;

fn lines(daemon: &Daemon) -> Vec<Value> {
    let said = daemon.said("stderr");
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    said.lines().map(line).collect()
}

#[test]
fn a_refused_token_a_plan_and_a_failed_start_are_each_logged_once_as_json() {
    let mut daemon = Daemon::start_with("json", &["--log-format", "json"]);
    let refused =
        crate::binary::run(daemon.command(&["ps"]).env("POLLUX_TOKEN", "a-guess-of-somebody-else-entirely"), b"");
    assert_ne!(refused.code, Some(0));
    let args = ["submit", "--watch", "--retries", "0", "--rigid", "--", "/no/such/program"];
    assert_eq!(daemon.pollux(&args).code, Some(1));
    assert_eq!(daemon.end(Signal::TERM), Some(0));
    let lines = lines(&daemon);
    let told = |message: &str| lines.iter().filter(|line| line["message"] == message).collect::<Vec<_>>();

    let refused = told("request refused");
    assert_eq!(refused.len(), 1, "{lines:#?}");
    let of = |name: &str| refused[0][name].clone();
    assert_eq!([of("level"), of("reason"), of("path")], ["WARN", "unauthorized", "/v1/jobs"].map(Value::from));
    assert_eq!(of("peer"), "127.0.0.1");
    assert!(!daemon.said("stderr").contains("a-guess-of-somebody-else"), "tokens are nobody's business");

    let plans = told("plan made");
    assert_eq!((plans.len(), &plans[0]["level"], &plans[0]["commands"]), (1, &"INFO".into(), &1.into()), "{lines:#?}");
    let failed = told("replica could not be started");
    assert_eq!((failed.len(), &failed[0]["replica"], &failed[0]["job"]), (1, &1.into(), &1.into()), "{lines:#?}");
    assert!(failed[0]["reason"].as_str().unwrap().contains("/no/such/program"), "{}", failed[0]);
    for message in ["job submitted", "launch", "job ended"] {
        let found = told(message);
        assert_eq!((found.len(), &found[0]["job"]), (1, &1.into()), "{message}: {lines:#?}");
    }
}

#[test]
fn whatever_keeps_a_scheduler_from_starting_is_one_line_of_json() {
    let daemon = Daemon::start_with("json_twice", &["--log-format", "json"]);
    let second = daemon.pollux(&["up", "--log-format", "json", "--listen", "127.0.0.1:0"]);
    assert_eq!(second.code, Some(1));
    let line: Value = serde_json::from_str(&second.stderr).unwrap_or_else(|_| panic!("{}", second.stderr));
    assert_eq!(line["level"], "ERROR");
    assert!(line["message"].as_str().unwrap().contains("another scheduler"), "{line}");
}

#[test]
fn text_is_for_people_and_the_level_says_how_much_of_it() {
    let mut daemon = Daemon::start_with("text", &["--log-level", "warn"]);
    assert_eq!(daemon.pollux(&["submit", "--watch", "--rigid", "--", "true"]).code, Some(0));
    assert_eq!(daemon.end(Signal::TERM), Some(0));
    let said = daemon.said("stderr");
    let warned: Vec<_> = said.lines().collect();
    let [shared] = warned[..] else { panic!("one thing to warn of: {said}") };
    assert!(shared.contains(" WARN checkpoints share a disk with the scheduler's journal: "), "{shared}");
    daemon.start_again();
    assert_eq!(daemon.pollux(&["submit", "--watch", "--rigid", "--", "true"]).code, Some(0));
    assert_eq!(daemon.end(Signal::TERM), Some(0));
    let said = daemon.said("stderr");
    assert!(said.lines().any(|line| line.contains(" INFO job ended job=2 phase=succeeded")), "{said}");
    assert!(!said.contains('\u{1b}'), "colours are for terminals: {said}");
}
