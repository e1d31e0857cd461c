use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tracing::warn;

use super::failure::HttpError;
use super::state::{AppState, STREAMS_MAX};
use crate::{Handle, Refused};

/// Pieces that wait for a slow client; whoever makes them waits, too.
const PIECES_MAX: usize = 16;
/// So that nobody in between takes a quiet stream for a dead one.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The pieces of an answer as they come.
type Feed<T> = Pin<Box<dyn Stream<Item = Result<T, Infallible>> + Send>>;

/// Where the pieces of an answer go in. `None` says that nobody reads any more.
#[derive(Debug)]
pub(crate) struct Pieces<T>(mpsc::Sender<T>);

impl<T> Pieces<T> {
    pub(crate) async fn send(&self, piece: T) -> Option<()> {
        self.0.send(piece).await.ok()
    }
}

/// Answers with the lines that `produce` sends, until it returns, the client leaves or the server ends.
pub(crate) fn lines<F: Future<Output = Option<()>> + Send + 'static>(
    state: &AppState,
    produce: impl FnOnce(Pieces<Bytes>) -> F,
) -> Result<Response, HttpError> {
    let body = Body::from_stream(feed(state, produce)?);
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response())
}

/// Answers with the server-sent events that `produce` sends, until it returns, the client leaves or the server ends.
pub(crate) fn events<F: Future<Output = Option<()>> + Send + 'static>(
    state: &AppState,
    produce: impl FnOnce(Pieces<Event>) -> F,
) -> Result<Response, HttpError> {
    let alive = KeepAlive::new().interval(KEEP_ALIVE).text("nothing new");
    Ok(Sse::new(feed(state, produce)?).keep_alive(alive).into_response())
}

/// Says why an answer that has begun is broken off: its status is long sent. That the server ends is no news.
pub(crate) fn broken_off(handle: &Handle, stream: &'static str, error: &HttpError) {
    if !matches!(error, HttpError::Refused(Refused::Away)) {
        handle.metrics().count_refusal(error.code());
        warn!(stream, code = error.code(), %error, "a stream is broken off");
    }
}

fn feed<T: Send + 'static, F: Future<Output = Option<()>> + Send + 'static>(
    state: &AppState,
    produce: impl FnOnce(Pieces<T>) -> F,
) -> Result<Feed<T>, HttpError> {
    let place = Arc::clone(&state.streams).try_acquire_owned();
    let place = place.map_err(|_| HttpError::TooManyStreams { limit: STREAMS_MAX })?;
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let (produced, state) = (produce(Pieces(sender.clone())), state.clone());
    tokio::spawn(async move {
        tokio::select! {
            _ = produced => {}
            () = sender.closed() => {}
            () = state.closed() => {}
        }
    });
    Ok(Box::pin(ReceiverStream::new(pieces).map(move |piece| {
        // The place is free when the body is dropped.
        let _held = &place;
        Ok(piece)
    })))
}
