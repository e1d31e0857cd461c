//! How long this replica may act: no longer than its lease is its own. Nothing is written to the cluster after that.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::Request;
use thiserror::Error;
use tower::{BoxError, Layer, Service};

/// The lease of this replica is over, or was never its own.
#[derive(Debug, Error)]
#[error("this replica is no longer the leader: nothing is written")]
pub(crate) struct TermOver;

/// A time that is extended with each renewal of the lease. It passes while this process is paused, too.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    origin: Instant,
    /// Milliseconds after that.
    end_ms: Arc<AtomicU64>,
}

impl Term {
    /// One that has not begun.
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), end_ms: Arc::default() }
    }

    pub(crate) fn end(&self) -> Instant {
        self.origin + Duration::from_millis(self.end_ms.load(Ordering::SeqCst))
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.end()
    }

    pub(crate) fn extend_to(&self, end: Instant) {
        let ms = end.saturating_duration_since(self.origin).as_millis();
        self.end_ms.store(u64::try_from(ms).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// Another replica leads.
    pub(crate) fn give_up(&self) {
        self.end_ms.store(0, Ordering::SeqCst);
    }
}

/// A client of the cluster whose writes are sent, and waited for, only within the term.
#[derive(Clone, Debug)]
pub(crate) struct WithinTerm<S> {
    inner: S,
    term: Term,
}

impl<S> Layer<S> for Term {
    type Service = WithinTerm<S>;

    fn layer(&self, inner: S) -> WithinTerm<S> {
        WithinTerm { inner, term: self.clone() }
    }
}

impl<S, B> Service<Request<B>> for WithinTerm<S>
where
    S: Service<Request<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (reads, term) = (request.method().is_safe(), self.term.clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            if reads {
                return answer.await.map_err(Into::into);
            }
            // Whatever is still on its way then must not arrive when another replica acts.
            if term.is_over() {
                return Err(TermOver.into());
            }
            match tokio::time::timeout_at(term.end().into(), answer).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err(TermOver.into()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{pending, ready};

    use tokio::runtime::Builder;
    use tower::service_fn;

    use super::*;

    /// What a client in this term is answered.
    fn answer(term: &Term, method: &str, hangs: bool) -> Result<u8, String> {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let cluster = service_fn(move |_: Request<()>| async move {
                if hangs {
                    pending::<()>().await;
                }
                ready(Ok::<_, Infallible>(1)).await
            });
            let request = Request::builder().method(method).body(()).unwrap();
            term.layer(cluster).call(request).await.map_err(|error| error.to_string())
        })
    }

    #[test]
    fn writes_are_sent_only_within_the_term_and_not_waited_for_after_it() {
        let term = Term::new();
        let over = Err("this replica is no longer the leader: nothing is written".to_owned());
        assert_eq!(answer(&term, "POST", false), over, "it has not begun");
        assert_eq!(answer(&term, "GET", false), Ok(1), "reading does no harm");
        term.extend_to(Instant::now() + Duration::from_secs(3600));
        assert_eq!(answer(&term, "PATCH", false), Ok(1));
        term.give_up();
        assert_eq!(answer(&term, "DELETE", false), over);
        term.extend_to(Instant::now() + Duration::from_millis(20));
        assert_eq!(answer(&term, "PUT", true), over, "an answer that would come too late");
    }
}
