use std::pin::Pin;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body::Body as _;
use pollux_api::{Event, EventList, LogPiece};
use pollux_backend::Exit;
use tower::ServiceExt;

use crate::calls::Site;
use crate::world::request;

/// An answer that is read as it comes.
struct Stream {
    body: Body,
    text: String,
}

impl Stream {
    async fn open(site: &Site, request: Request<Body>) -> Self {
        let response = site.app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        Self { body: response.into_body(), text: String::new() }
    }

    async fn get(site: &Site, path: &str) -> Self {
        Self::open(site, Site::request(Method::GET, path, "")).await
    }

    /// Reads on; returns whether there was more.
    async fn next(&mut self) -> bool {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx));
        let frame = tokio::time::timeout(crate::world::PATIENCE, frame).await.expect("something comes or it ends");
        match frame {
            Some(frame) => self.text += std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap(),
            None => return false,
        }
        true
    }

    /// Reads until there are so many events.
    async fn events(&mut self, count: usize) -> Vec<Event> {
        loop {
            let events = self.text.split("\n\n").filter_map(|block| block.strip_prefix("id: "));
            let events: Vec<(u64, Event)> = events
                .filter_map(|event| event.split_once("\ndata: "))
                .map(|(id, data)| (id.parse().unwrap(), serde_json::from_str(data).unwrap()))
                .collect();
            assert!(events.iter().all(|(id, event)| *id == event.sequence));
            if events.len() >= count {
                return events.into_iter().map(|(_, event)| event).collect();
            }
            assert!(self.next().await, "it ended after {}", self.text);
        }
    }

    /// Reads until there are so many pieces of logs.
    async fn pieces(&mut self, count: usize) -> Vec<LogPiece> {
        loop {
            let data = self.text.split_terminator("\n\n").filter_map(|message| message.strip_prefix("data: "));
            let pieces: Vec<LogPiece> = data.filter_map(|data| serde_json::from_str(data).ok()).collect();
            if pieces.len() >= count {
                return pieces;
            }
            assert!(self.next().await, "it ended after {}", self.text);
        }
    }

    async fn all(mut self) -> String {
        while self.next().await {}
        self.text
    }
}

fn sequences(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.sequence).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_paged_and_a_stream_goes_on_where_another_stopped() {
    let site = Site::new(&[("a", 1)]).await;
    site.submit("one", 1).await;
    site.submit("two", 1).await;
    site.until("the launch", async || (!site.world.running().is_empty()).then_some(())).await;
    let mut stream = Stream::get(&site, "/v1/events/stream?after=0").await;
    let events = stream.events(4).await;
    assert_eq!(sequences(&events), [1, 2, 3, 4]);
    let page: EventList = site.get("/v1/events?after=1&limit=2").await.json(StatusCode::OK);
    assert_eq!((page.events.as_slice(), page.next_after), (&events[1..3], 3));
    let last: EventList = site.get("/v1/events?before=4&limit=2").await.json(StatusCode::OK);
    assert_eq!((last.events.as_slice(), last.next_after), (&events[1..3], 3), "the newest, and in order");
    site.get("/v1/events?before=4&after=1").await.failure(400);
    let of_job: EventList = site.get("/v1/events?job=2").await.json(StatusCode::OK);
    assert_eq!(of_job.events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["submitted"]);

    let mut only_two = Stream::get(&site, "/v1/events/stream?job=2").await;
    let mut resumed = Site::request(Method::GET, "/v1/events/stream?after=0", "");
    resumed.headers_mut().insert("last-event-id", "3".parse().unwrap());
    let mut resumed = Stream::open(&site, resumed).await;
    assert_eq!(resumed.events(1).await, events[3..4]);
    site.post("/v1/jobs/2/cancel", "").await.is_done();
    let kinds = only_two.events(2).await.into_iter().map(|event| event.kind);
    assert_eq!(kinds.collect::<Vec<_>>(), ["cancelled", "ended"], "from now on, of that job");
    assert_eq!(sequences(&resumed.events(3).await)[..3], [4, 5, 6]);
    site.state.close();
    for open in [stream, only_two, resumed] {
        open.all().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_of_the_history_is_shown_and_what_breaks_a_stream_off_is_counted() {
    let site = Site::new(&[("a", 1)]).await;
    let database = rusqlite::Connection::open(site.folder.path().join("pollux.db")).unwrap();
    let later = r#"{"happened":"teleported","node":"a"}"#;
    for (sequence, text) in [(101, later), (102, "garbage")] {
        let line = rusqlite::params![sequence, text];
        database.execute("INSERT INTO history VALUES (?1, 0, NULL, ?2, 2)", line).unwrap();
    }
    let page: EventList = site.get("/v1/events?after=100").await.json(StatusCode::OK);
    let shown = page.events.iter().map(|event| (event.sequence, event.kind.as_str(), event.detail.to_string()));
    let shown: Vec<_> = shown.collect();
    assert_eq!(shown, [(101, "teleported", r#"{"node":"a"}"#.to_owned()), (102, "unreadable", "{}".to_owned())]);
    assert!(page.events.iter().all(|event| event.text.starts_with("this cannot be read: ")), "{:?}", page.events);

    database.execute("ALTER TABLE history RENAME TO hidden", []).unwrap();
    Stream::get(&site, "/v1/events/stream?after=0").await.all().await;
    let metrics = site.get("/metrics").await.body;
    assert!(metrics.contains(r#"pollux_http_refusals_total{reason="unreadable"} 1"#), "{metrics}");
    database.execute("ALTER TABLE hidden RENAME TO history", []).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_of_events_misses_nothing() {
    let site = Site::new(&[("a", 1)]).await;
    let mut stream = Stream::get(&site, "/v1/events/stream?after=0").await;
    // More than are kept for those who are slow.
    let submitted: Vec<_> = (0..1_500).map(|_| site.server.handle().submit(request("job", 1))).collect();
    for answer in submitted {
        answer.get().await.unwrap();
    }
    let events = stream.events(1_500).await;
    assert_eq!(sequences(&events), (1..=events.len() as u64).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_all_replicas_are_told() {
    let site = Site::new(&[("a", 2)]).await;
    site.submit("job", 2).await;
    site.until("the launch", async || site.world.running().get(1).cloned()).await;
    site.world.write_log(1, "loading\nstep 1\nstep 2\nst");
    site.world.write_log(2, "hello\n");
    assert_eq!(site.get("/v1/jobs/1/logs").await.body, "1| loading\n1| step 1\n1| step 2\n1| st\n2| hello\n");
    assert_eq!(site.get("/v1/jobs/1/logs?replica=1&tail=2").await.body, "step 2\nst\n");
    let (code, message) = site.get("/v1/jobs/1/logs?replica=3").await.failure(404);
    assert_eq!((code.as_str(), message.contains("GET /v1/jobs/1 ")), ("unknown_replica", true), "{message}");

    site.world.write_log(1, "ep 3\n");
    site.world.drop_log(1, 8);
    site.world.write_log(1, "done");
    site.world.exit(2, Exit::Code(0));
    site.world.exit(1, Exit::Code(0));
    let stream = Stream::get(&site, "/v1/jobs/1/logs/stream").await;
    assert!(stream.all().await.ends_with("event: end\ndata: {}\n\n"), "the job has ended");
    let all = site.get("/v1/jobs/1/logs?replica=1").await.body;
    assert_eq!(all, "[8 bytes before this are not kept]\nstep 1\nstep 2\nstep 3\ndone\n");
    assert_eq!(site.get("/v1/jobs/1/logs?tail=1").await.body, "1| done\n2| hello\n", "also of a job that has ended");
    assert_eq!(site.get("/v1/jobs/2/logs").await.failure(404).0, "unknown_job");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_logs_goes_on_where_another_stopped_and_says_when_the_job_has_ended() {
    let site = Site::new(&[("a", 2)]).await;
    site.submit("job", 2).await;
    site.until("the launch", async || site.world.running().get(1).cloned()).await;
    site.world.write_log(1, "step 1\nstep 2\r50%");
    site.world.write_log(2, "hello\n");
    let mut first = Stream::get(&site, "/v1/jobs/1/logs/stream?tail=1").await;
    let pieces = first.pieces(2).await;
    assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<Vec<_>>(), ["step 2\r50%", "hello\n"]);
    drop(first);
    site.world.write_log(1, "\r100%\n");
    let after: Vec<String> = pieces.iter().map(|piece| format!("{}.{}", piece.replica, piece.position)).collect();
    let path = format!("/v1/jobs/1/logs/stream?tail=1&after={}", after.join(","));
    let mut second = Stream::get(&site, &path).await;
    assert_eq!(second.pieces(1).await[0].text, "\r100%\n", "nothing twice, nothing lost");
    let cut = format!("/v1/jobs/1/logs/stream?tail=1&after=1.{}", pieces[0].position);
    site.world.write_log(2, "again\n");
    let unnamed = Stream::get(&site, &cut).await.pieces(2).await;
    let unnamed = unnamed.iter().find(|piece| piece.replica == 2).map(|piece| piece.text.as_str());
    assert_eq!(unnamed, Some("again\n"), "a replica that is not named begins with the last lines, too");
    site.world.exit(2, Exit::Code(0));
    site.world.exit(1, Exit::Code(0));
    assert!(second.all().await.ends_with("\n\nevent: end\ndata: {}\n\n"));
    let again = Stream::get(&site, "/v1/jobs/1/logs/stream?replica=2").await.all().await;
    assert!(again.contains("hello") && !again.contains("100%") && again.contains("event: end"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_between_the_last_lines_and_the_next_stream_is_told() {
    let site = Site::new(&[("a", 1)]).await;
    site.submit("job", 1).await;
    site.until("the launch", async || site.world.running().first().cloned()).await;
    site.world.write_log(1, "old\n");
    let mut first = Stream::get(&site, "/v1/jobs/1/logs/stream?tail=0").await;
    while !first.text.contains("event: begun\n") {
        assert!(first.next().await);
    }
    let here = first.pieces(1).await.remove(0);
    assert_eq!((here.text.as_str(), first.pieces(1).await.len()), ("", 1), "no line was asked for");
    drop(first);
    site.world.write_log(1, "meanwhile\n");
    let path = format!("/v1/jobs/1/logs/stream?after=1.{}", here.position);
    assert_eq!(Stream::get(&site, &path).await.pieces(1).await[0].text, "meanwhile\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_logs_that_the_server_ends_does_not_say_that_the_job_has_ended() {
    let site = Site::new(&[("a", 1)]).await;
    site.submit("job", 1).await;
    let stream = Stream::get(&site, "/v1/jobs/1/logs/stream").await;
    site.state.close();
    assert!(!stream.all().await.contains("event: end"));
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_limited_and_one_that_is_left_makes_room() {
    let site = Site::new(&[("a", 1)]).await;
    let mut open = Vec::new();
    for _ in 0..256 {
        open.push(Stream::get(&site, "/v1/events/stream").await);
    }
    assert_eq!(site.get("/v1/events/stream").await.failure(503).0, "too_many_streams");
    open.pop();
    Stream::get(&site, "/v1/events/stream").await;
}
