use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use pollux_api::{ClusterStatus, Event, Explanation, Job, Node};
use pollux_client::{Client, ClientError, EventQuery, JobAction, JobQuery};

use super::super::events::latest;

/// Between two looks at the cluster, if nothing happens.
const LOOK: Duration = Duration::from_secs(1);
/// Between two looks, whatever happens.
const PAUSE: Duration = Duration::from_millis(150);
/// Jobs that are shown at most.
const JOBS_MAX: u32 = 200;
/// Events that are kept.
const EVENTS_MAX: usize = 50;

/// The cluster at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct World {
    pub(super) cluster: ClusterStatus,
    pub(super) nodes: Vec<Node>,
    pub(super) jobs: Vec<Job>,
    /// The last ones, the newest last.
    pub(super) events: Vec<Event>,
}

impl World {
    /// All of it, afresh.
    pub(super) fn read(client: &Client) -> anyhow::Result<Self> {
        let events = latest(client, None, EVENTS_MAX as u32)?.events;
        Ok(Self::with_events(client, events)?)
    }

    fn with_events(client: &Client, events: Vec<Event>) -> Result<Self, ClientError> {
        let cluster = client.cluster()?;
        let nodes = client.nodes()?.nodes;
        let jobs = client.jobs(JobQuery { limit: Some(JOBS_MAX), ..JobQuery::default() })?.jobs;
        Ok(Self { cluster, nodes, jobs, events })
    }
}

/// What is new.
#[derive(Debug)]
pub(super) enum News {
    /// How things stand.
    World(Box<World>),
    /// The server cannot be reached; it is tried again.
    Lost(String),
    /// What came of an order.
    Told(String),
    /// The answer to a question.
    Explained(Box<Explanation>),
}

/// Threads that speak to the server, so that nobody who looks at the screen waits for it. They end with the process.
#[derive(Debug)]
pub(super) struct Feed {
    client: Client,
    news: Receiver<News>,
    tell: Sender<News>,
}

impl Feed {
    /// Begins to watch.
    pub(super) fn start(client: &Client) -> anyhow::Result<Self> {
        let (tell, news) = mpsc::channel();
        let (happen, happened) = mpsc::channel();
        let streaming = client.clone();
        thread::Builder::new().name("events".to_owned()).spawn(move || stream(&streaming, &happen))?;
        let (looking, teller) = (client.clone(), tell.clone());
        thread::Builder::new().name("looks".to_owned()).spawn(move || look(&looking, &happened, &teller))?;
        Ok(Self { client: client.clone(), news, tell })
    }

    /// What there is; it does not wait.
    pub(super) fn news(&self) -> impl Iterator<Item = News> {
        self.news.try_iter()
    }

    /// Gives an order about a job.
    pub(super) fn act(&self, id: u64, action: JobAction) {
        let done = format!("job {id} {}", action.outcome());
        self.ask(move |client| client.act(id, action).map(|()| News::Told(done)));
    }

    /// Asks why a job has what it has.
    pub(super) fn explain(&self, id: u64) {
        self.ask(move |client| client.explanation(id).map(|it| News::Explained(Box::new(it))));
    }

    fn ask(&self, question: impl FnOnce(&Client) -> Result<News, ClientError> + Send + 'static) {
        let (client, tell) = (self.client.clone(), self.tell.clone());
        thread::spawn(move || {
            let answer = question(&client).unwrap_or_else(|error| News::Told(error.to_string()));
            // Whoever asked may have left.
            let _ = tell.send(answer);
        });
    }
}

/// Passes events on for as long as somebody listens.
fn stream(client: &Client, happen: &Sender<Event>) {
    let mut after = None;
    loop {
        let begin = after
            .map_or_else(|| client.cluster().map(|status| status.last_event.saturating_sub(EVENTS_MAX as u64)), Ok);
        let events = begin.and_then(|after| client.event_stream(EventQuery { after, ..EventQuery::default() }));
        // Whatever breaks, the looks tell of it.
        for event in events.into_iter().flatten().map_while(Result::ok) {
            after = Some(event.sequence);
            if happen.send(event).is_err() {
                return;
            }
        }
        thread::sleep(LOOK);
    }
}

/// Looks at the cluster when something happens, and every second.
fn look(client: &Client, happened: &Receiver<Event>, tell: &Sender<News>) {
    let mut events: VecDeque<Event> = VecDeque::new();
    loop {
        let world = World::with_events(client, events.iter().cloned().collect());
        let news = world.map_or_else(|error| News::Lost(error.to_string()), |world| News::World(Box::new(world)));
        if tell.send(news).is_err() {
            return;
        }
        thread::sleep(PAUSE);
        match happened.recv_timeout(LOOK) {
            Ok(event) => events.push_back(event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        events.extend(happened.try_iter());
        let surplus = events.len().saturating_sub(EVENTS_MAX);
        events.drain(..surplus);
    }
}
