//! Kubernetes Events, written beside everything else: nothing waits for them.

use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use pollux_server::views;
use pollux_store::HistoryEntry;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tracing::warn;

use crate::PolluxJob;

/// Events that wait to be written; more are left out, which is logged.
const WAITING_MAX: usize = 10_000;
/// Requests at a time: the API server has other clients.
const REQUESTS_MAX: usize = 4;

/// Tells of what happens to jobs. What still waits when it is dropped is written.
pub(crate) struct EventWriter(Sender<(Event, ObjectReference)>);

impl EventWriter {
    /// One with a task of its own, in the runtime that it is called in.
    pub(crate) fn start(client: Client) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        tokio::spawn(write(client, receiver));
        Self(sender)
    }

    /// Has something that happened to a job written down.
    pub(crate) fn send(&self, entry: &HistoryEntry, resource: &PolluxJob) {
        let told = views::event(entry);
        let type_ = match told.kind.as_str() {
            // Its creation says so already.
            "submitted" => return,
            "not_started" => EventType::Warning,
            _ => EventType::Normal,
        };
        let reason = told.kind.split('_').map(capitalised).collect();
        let note: String = told.text.chars().take(1_000).collect();
        let event = Event { type_, reason, note: Some(note), action: "Schedule".to_owned(), secondary: None };
        if self.0.try_send((event, resource.object_ref(&()))).is_err() {
            warn!("Events cannot be written fast enough; one is left out");
        }
    }
}

async fn write(client: Client, waiting: Receiver<(Event, ObjectReference)>) {
    let next = |mut waiting: Receiver<_>| async { waiting.recv().await.map(|event| (event, waiting)) };
    let one = |(event, about): (Event, ObjectReference)| {
        // One that is used again counts what has the same reason, and keeps only the first sentence.
        let reporter = Reporter { controller: "pollux".to_owned(), instance: None };
        let recorder = Recorder::new(client.clone(), reporter);
        async move {
            if let Err(error) = recorder.publish(&event, &about).await {
                warn!(%error, "an Event could not be written");
            }
        }
    };
    stream::unfold(waiting, next).for_each_concurrent(REQUESTS_MAX, one).await;
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
}
