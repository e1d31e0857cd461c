use std::fs;
use std::path::Path;

use pollux_client::EventQuery;
use pollux_job::Phase;
use rusqlite::Connection;

use crate::daemon::Site;

/// The machine that the fixture was made on is gone, and everything that ran on it.
#[test]
fn a_daemon_starts_on_a_state_folder_of_version_0_1() {
    let site = Site::new(&["--nodes", "2x4"]);
    fs::create_dir(site.state()).unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/store/tests/fixtures/v1/state.sql");
    let database = Connection::open(site.state().join("pollux.db")).unwrap();
    database.execute_batch(&fs::read_to_string(fixture).unwrap()).unwrap();
    drop(database);
    let _daemon = site.start();
    let client = site.client().unwrap();
    let jobs = site.jobs().unwrap();
    assert_eq!(jobs.len(), 11, "{jobs:?}");
    let phase = |name: &str| jobs.iter().find(|job| job.name == name).unwrap().phase;
    assert_eq!(
        ["vision", "broken", "abandoned", "ablation", "too-large"].map(phase),
        [Phase::Succeeded, Phase::Failed, Phase::Cancelled, Phase::Paused, Phase::Queued]
    );
    let failed = jobs.iter().find(|job| job.name == "broken").unwrap();
    assert_eq!(failed.failure.as_deref(), Some("a replica failed on local-0: exit code 3"));
    let speech = client.job(2).unwrap();
    assert_eq!((speech.spec.env["SEED"].as_str(), speech.spec.working_dir.to_str()), ("7", Some("/srv/pollux/work")));
    let first = client.events(EventQuery { limit: Some(3), ..EventQuery::default() }).unwrap();
    let texts: Vec<&str> = first.events.iter().map(|event| event.text.as_str()).collect();
    assert_eq!(texts, ["node local-0 is up", "node local-1 is up", "vision was submitted"]);
    let new = client.submit(&site.job("new", vec!["true".to_owned()])).unwrap();
    assert_eq!(new.id, 12);
}
