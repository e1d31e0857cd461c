use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use http_body::Frame;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::failure::HttpError;
use super::state::{AppState, STREAMS_MAX};

/// Pieces that wait for a slow client; whoever makes them waits, too.
const PIECES_MAX: usize = 16;

/// An answer that goes on.
struct Feed {
    pieces: mpsc::Receiver<Bytes>,
    _place: OwnedSemaphorePermit,
}

/// Where its pieces go in. `None` says that nobody reads any more.
#[derive(Clone, Debug)]
pub(crate) struct Pieces(mpsc::Sender<Bytes>);

impl Pieces {
    pub(crate) async fn send(&self, piece: impl Into<Bytes>) -> Option<()> {
        self.0.send(piece.into()).await.ok()
    }
}

/// Answers with what `produce` sends, until it returns, the client leaves or the server ends.
pub(crate) fn feed<F: Future<Output = Option<()>> + Send + 'static>(
    state: &AppState,
    content_type: &'static str,
    produce: impl FnOnce(Pieces) -> F,
) -> Result<Response, HttpError> {
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
    let body = Body::new(Feed { pieces, _place: place });
    Ok(([(CONTENT_TYPE, content_type)], body).into_response())
}

impl http_body::Body for Feed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.pieces.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
