//! A worker and servers of every temper.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod server;

use std::time::{Duration, Instant};

use pollux_agent::{Agent, AgentReport, AgentSettings};
use pollux_model::BatchLimits;
use pollux_worker::{Assignment, Endpoint, Orders, Rendezvous, Termination, Worker};
use server::{Answer, Server, assignment, connection, stop};

/// Far above what anything here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn start(server: &Server) -> (Worker, Termination) {
    let termination = Termination::default();
    (Worker::start(connection(server.port()), termination.clone()).unwrap(), termination)
}

fn generation(worker: &Worker) -> Option<u64> {
    worker.assignment().map(|assignment| assignment.generation)
}

fn report(epochs: u32) -> AgentReport {
    let limits = BatchLimits::new(8, 64, 1, 64).unwrap();
    let mut report = Agent::new(AgentSettings::new(limits)).report();
    report.progress.epochs = epochs;
    report
}

fn json(assignment: &Assignment) -> Answer {
    Answer::json(200, &serde_json::to_string(assignment).unwrap())
}

#[test]
fn a_new_assignment_is_heard_while_the_worker_waits_for_it() {
    let server = Server::new(|_| json(&assignment(1, &[7])));
    let (worker, _) = start(&server);
    assert_eq!(eventually("the first assignment", || worker.assignment()).replicas.len(), 1);
    assert_eq!(worker.orders(), Orders::Train);
    server.answer(|request| if request.after() < 2 { json(&assignment(2, &[7, 8])) } else { Answer::Silence });
    let second = eventually("the second assignment", || worker.assignment().filter(|heard| heard.generation == 2));
    assert_eq!((second.replicas.len(), second.master_port), (2, 4711));
}

#[test]
fn a_rendezvous_is_published_and_the_others_hear_of_it_without_another_generation() {
    let unmet = || Assignment { rendezvous: Rendezvous::Awaited, ..assignment(1, &[7, 8]) };
    let met = || {
        let endpoint = Endpoint { address: "10.0.0.7".to_owned(), port: 4242 };
        Assignment { rendezvous: Rendezvous::At(endpoint), ..assignment(1, &[7, 8]) }
    };
    let server = Server::new(move |request| match request.path() {
        "assignment" if request.after() == 0 => json(&unmet()),
        "assignment" => Answer::Silence,
        _ => Answer::status(204),
    });
    let (worker, _) = start(&server);
    assert_eq!(eventually("the assignment", || worker.assignment()).endpoint(), None);
    let waiting = |request: &server::Request| request.line.contains("after=1&rendezvous=true");
    eventually("the wish", || server.requests().iter().any(waiting).then_some(()));
    worker.publish_rendezvous(1, 4711);
    let post = eventually("the post", || server.posts().into_iter().next());
    assert_eq!(
        (post.path(), post.body.as_str()),
        ("rendezvous", r#"{"generation":1,"address":"127.0.0.1","port":4711}"#)
    );
    let (other, _) = start(&server);
    eventually("its assignment", || other.assignment());
    server.answer(move |_| json(&met()));
    let third = start(&server).0;
    let endpoint = eventually("the rendezvous", || third.assignment()?.endpoint());
    assert_eq!((endpoint.address.as_str(), endpoint.port), ("10.0.0.7", 4242));
}

#[test]
fn what_a_scheduler_says_after_its_successor_was_heard_counts_for_nothing() {
    let of = |epoch: Option<u64>, assignment: Assignment| json(&Assignment { epoch, ..assignment });
    let server = Server::new(move |_| of(Some(5), assignment(3, &[7])));
    let (worker, _) = start(&server);
    eventually("the first assignment", || worker.assignment());
    server.answer(move |_| of(Some(4), stop(9)));
    let asked = server.requests().len();
    eventually("two more questions", || (server.requests().len() >= asked + 2).then_some(()));
    assert_eq!((generation(&worker), worker.orders()), (Some(3), Orders::Train));
    server.answer(move |_| of(None, assignment(4, &[7])));
    eventually("one that says nothing of it", || (generation(&worker) == Some(4)).then_some(()));
    server.answer(move |_| of(Some(4), stop(9)));
    let asked = server.requests().len();
    eventually("two more questions", || (server.requests().len() >= asked + 2).then_some(()));
    assert_eq!((generation(&worker), worker.orders()), (Some(4), Orders::Train));
    server.answer(move |_| of(Some(6), stop(4)));
    eventually("the stop", || (worker.orders() == Orders::Stop).then_some(()));
}

#[test]
fn every_request_names_the_job_and_carries_the_token() {
    let server = Server::new(|request| match request.path() {
        "assignment" => json(&assignment(1, &[7])),
        _ => Answer::status(204),
    });
    let (worker, _) = start(&server);
    worker.ready(1, Some(0.25));
    worker.report(1, report(3));
    eventually("both messages", || (server.posts().len() == 2).then_some(()));
    for request in server.requests() {
        assert!(request.line.contains(" /v1/jobs/12/"), "{}", request.line);
        assert_eq!(request.authorization.as_deref(), Some("Bearer secret"), "{}", request.line);
    }
    let bodies: Vec<_> = server.posts().into_iter().map(|post| (post.path().to_owned(), post.body)).collect();
    let ready = bodies.iter().find(|(path, _)| path == "ready").unwrap();
    assert_eq!(ready.1, r#"{"generation":1,"pause_s":0.25}"#);
    let reported = bodies.iter().find(|(path, _)| path == "reports").unwrap();
    assert!(reported.1.starts_with(r#"{"generation":1,"report":{"limits":"#), "{}", reported.1);
}

#[test]
fn what_is_told_while_the_server_is_away_reaches_it_when_it_is_back_and_of_reports_only_the_newest() {
    let server = Server::new(|_| Answer::Hangup);
    let (worker, _) = start(&server);
    worker.ready(1, None);
    for epoch in 1..=5 {
        worker.report(1, report(epoch));
    }
    eventually("some tries", || (server.requests().len() > 4).then_some(()));
    assert_eq!((generation(&worker), worker.orders()), (None, Orders::Train));
    server.clear();
    server.answer(|request| match request.path() {
        "assignment" => json(&assignment(1, &[7])),
        _ => Answer::status(204),
    });
    eventually("both messages", || (server.posts().len() >= 2).then_some(()));
    assert!(worker.finish(PATIENCE));
    let posts = server.posts();
    let told: Vec<_> = posts.iter().map(|post| (post.path(), post.body.contains("\"epochs\":5"))).collect();
    assert_eq!(told, [("ready", false), ("reports", true)]);
}

#[test]
fn a_server_that_restarts_on_its_port_is_found_again() {
    let server = Server::new(|_| json(&assignment(1, &[7])));
    let port = server.port();
    let (worker, _) = start(&server);
    eventually("the first assignment", || generation(&worker));
    drop(server);
    worker.report(1, report(1));
    let server = Server::on(port, |request| match request.path() {
        "assignment" => json(&assignment(4, &[7])),
        _ => Answer::status(204),
    });
    eventually("the report", || (!server.posts().is_empty()).then_some(()));
    eventually("the assignment after the restart", || (generation(&worker) == Some(4)).then_some(()));
}

#[test]
fn stale_words_are_dropped_and_later_ones_are_told() {
    let server = Server::new(|request| match request.path() {
        "assignment" => json(&assignment(2, &[7])),
        _ if request.body.starts_with("{\"generation\":1") => Answer::status(409),
        _ => Answer::status(204),
    });
    let (worker, _) = start(&server);
    worker.ready(1, Some(0.1));
    worker.report(1, report(1));
    eventually("both stale messages", || (server.posts().len() == 2).then_some(()));
    worker.ready(2, Some(0.1));
    assert!(worker.finish(PATIENCE));
    let posts: Vec<_> = server.posts().into_iter().map(|post| post.path().to_owned()).collect();
    assert_eq!(posts, ["ready", "reports", "ready"]);
}

#[test]
fn a_worker_that_is_refused_trains_on() {
    let server = Server::new(|_| Answer::status(401));
    let (worker, _) = start(&server);
    worker.report(1, report(1));
    eventually("a refused report", || (!server.posts().is_empty()).then_some(()));
    assert_eq!((generation(&worker), worker.orders()), (None, Orders::Train));
}

#[test]
fn before_the_first_step_a_refusal_is_an_error_that_says_what_to_change() {
    let server = Server::new(|_| Answer::status(401));
    let (worker, _) = start(&server);
    let error = eventually("the refusal", || worker.answered(PATIENCE).err()).to_string();
    let expected = format!("http://127.0.0.1:{} does not let job 12 in (status 401); POLLUX_TOKEN and", server.port());
    assert!(error.starts_with(&expected) && !error.contains("secret"), "{error}");
    // A refusal that is taken back is none.
    server.answer(|_| json(&assignment(1, &[7])));
    eventually("the assignment", || generation(&worker));
    assert!(worker.answered(Duration::ZERO).unwrap());
}

#[test]
fn before_the_first_step_a_server_that_is_away_has_time_to_come_back() {
    let server = Server::new(|_| Answer::Hangup);
    let (worker, _) = start(&server);
    eventually("failures", || (server.requests().len() >= 3).then_some(()));
    assert!(!worker.answered(PATIENCE).unwrap());
    let error = worker.answered(Duration::ZERO).unwrap_err().to_string();
    assert!(error.starts_with(&format!("no server at http://127.0.0.1:{} (", server.port())), "{error}");
    assert!(error.ends_with("; start one with `pollux up`, or unset POLLUX_JOB_ID to train alone"), "{error}");
    server.answer(|_| json(&assignment(1, &[7])));
    eventually("the answer", || worker.answered(PATIENCE).unwrap().then_some(()));
}

#[test]
fn a_report_that_the_server_cannot_use_is_not_told_twice() {
    let server = Server::new(|request| match request.path() {
        "assignment" => json(&assignment(1, &[7])),
        "reports" => Answer::status(422),
        _ => Answer::status(204),
    });
    let (worker, _) = start(&server);
    worker.report(1, report(1));
    eventually("the report", || (!server.posts().is_empty()).then_some(()));
    worker.ready(1, None);
    assert!(worker.finish(PATIENCE));
    let posts: Vec<_> = server.posts().into_iter().map(|post| post.path().to_owned()).collect();
    assert_eq!(posts, ["reports", "ready"]);
}

#[test]
fn answers_that_make_no_sense_are_ignored() {
    let valid = serde_json::to_string(&assignment(3, &[7, 8])).unwrap();
    let nonsense = [
        String::new(),
        "<html>hello</html>".to_owned(),
        "{\"generation\":-1}".to_owned(),
        "[".repeat(100_000),
        valid.replace("\"rank\":1", "\"rank\":5"),
        valid.replace("\"replica\":8", "\"replica\":7"),
        valid.replace("\"local_world_size\":2", "\"local_world_size\":1"),
        serde_json::to_string(&assignment(9, &[])).unwrap(),
    ];
    for text in nonsense {
        let start_of_it: String = text.chars().take(60).collect();
        let answer = text.clone();
        let server = Server::new(move |_| Answer::json(200, &answer));
        let (worker, _) = start(&server);
        eventually("two tries", || (server.requests().len() >= 2).then_some(()));
        assert_eq!(generation(&worker), None, "{start_of_it}");
        let answer = valid.clone();
        server.answer(move |_| Answer::json(200, &answer));
        eventually("a valid assignment", || generation(&worker));
    }
}

#[test]
fn bytes_that_are_not_http_are_ignored() {
    let server = Server::new(|_| Answer::Raw(b"\x00\xffSSH-2.0\r\n\r\n".to_vec()));
    let (worker, _) = start(&server);
    eventually("two tries", || (server.requests().len() >= 2).then_some(()));
    assert_eq!((generation(&worker), worker.orders()), (None, Orders::Train));
}

#[test]
fn an_older_assignment_that_comes_late_changes_nothing() {
    let server = Server::new(|_| json(&assignment(5, &[7])));
    let (worker, _) = start(&server);
    eventually("the newest", || (generation(&worker) == Some(5)).then_some(()));
    server.clear();
    server.answer(|_| json(&assignment(4, &[9])));
    eventually("some late ones", || (server.requests().len() > 3).then_some(()));
    assert_eq!(generation(&worker), Some(5));
    // It did not ask for what it knows already.
    assert!(server.requests().iter().all(|request| request.after() == 5));
}

#[test]
fn a_slow_server_holds_up_no_call() {
    let server = Server::new(|_| Answer::Silence);
    let (worker, termination) = start(&server);
    eventually("a question", || (!server.requests().is_empty()).then_some(()));
    let calls = Instant::now();
    for epoch in 0..1000 {
        worker.report(1, report(epoch));
        worker.ready(1, None);
        assert_eq!((worker.orders(), worker.assignment()), (Orders::Train, None));
    }
    termination.request();
    worker.orders();
    // Had one call in a hundred waited for an answer, it would have taken longer.
    assert!(calls.elapsed() < PATIENCE, "calls waited for the server: {:?}", calls.elapsed());
    assert!(!worker.finish(Duration::from_millis(20)), "nobody took the messages");
}

#[test]
fn a_group_that_is_to_stop_stops_and_asks_no_more() {
    let server = Server::new(|_| json(&assignment(2, &[7])));
    let (worker, _) = start(&server);
    eventually("the assignment", || generation(&worker));
    server.answer(|_| json(&stop(2)));
    eventually("the order to stop", || (worker.orders() == Orders::Stop).then_some(()));
    server.clear();
    worker.report(2, report(1));
    assert!(worker.finish(PATIENCE));
    let asked: Vec<_> = server.requests().into_iter().map(|request| request.path().to_owned()).collect();
    assert_eq!(asked, ["reports"]);
}

#[test]
fn a_signal_that_the_scheduler_explains_by_a_removal_lets_the_worker_train_until_the_group_changes() {
    let server =
        Server::new(|request| if request.after() < 1 { json(&assignment(1, &[7, 8])) } else { Answer::Silence });
    let (worker, termination) = start(&server);
    eventually("the assignment", || generation(&worker));
    server.answer(|request| if request.waits() { Answer::Silence } else { json(&assignment(2, &[8])) });
    termination.request();
    // The long poll is stuck: only asking anew can have told it.
    eventually("the explanation", || {
        assert_eq!(worker.orders(), Orders::Train);
        (generation(&worker) == Some(2)).then_some(())
    });
}

#[test]
fn a_signal_that_nobody_explains_makes_the_worker_leave_after_a_while() {
    let server = Server::new(|_| Answer::Hangup);
    let (worker, termination) = start(&server);
    termination.request();
    let asked = Instant::now();
    assert_eq!(worker.orders(), Orders::Train);
    eventually("the decision", || (worker.orders() == Orders::Leave).then_some(()));
    assert!(asked.elapsed() >= Duration::from_secs(8));
}

#[test]
fn a_worker_that_got_a_signal_asks_until_a_scheduler_that_is_started_again_explains_it() {
    let server = Server::new(|_| Answer::Hangup);
    let (worker, termination) = start(&server);
    worker.report(1, report(1));
    // It has given up asking often before the signal comes.
    eventually("failures", || (server.requests().len() >= 10).then_some(()));
    termination.request();
    server.clear();
    let questions = || server.requests().iter().filter(|request| !request.waits()).count();
    eventually("questions", || {
        assert_eq!(worker.orders(), Orders::Train);
        (questions() >= 10).then_some(())
    });
    server.answer(|request| if request.waits() { Answer::Hangup } else { json(&assignment(2, &[8])) });
    eventually("the explanation", || {
        assert_eq!(worker.orders(), Orders::Train);
        (generation(&worker) == Some(2)).then_some(())
    });
}
