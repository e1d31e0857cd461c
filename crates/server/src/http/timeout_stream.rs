use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// What a client may take to take what there is for it. Long enough for somebody who reads a log page by page.
const TAKE_WAIT: Duration = Duration::from_secs(300);
/// What a client may take to notice that it was answered before it had said everything.
const LINGER: Duration = Duration::from_secs(2);

/// A connection that does not wait for ever for its other end to listen, and lets it hear the last answer.
#[derive(Debug)]
pub(crate) struct TimeoutStream<S> {
    stream: S,
    /// Until when what was written has to be taken.
    taken_by: Option<Pin<Box<Sleep>>>,
    /// When something was last written.
    answered: Option<Instant>,
    /// Until when somebody who may still speak is heard out.
    lingers: Option<Pin<Box<Sleep>>>,
}

impl<S> TimeoutStream<S> {
    pub(crate) const fn new(stream: S) -> Self {
        Self { stream, taken_by: None, answered: None, lingers: None }
    }

    /// Ends a wait that takes too long.
    fn bounded<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            return written;
        }
        ready!(self.taken_by.get_or_insert_with(|| Box::pin(sleep(TAKE_WAIT))).as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn wrote(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.answered = Some(Instant::now());
        }
        self.bounded(cx, written)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.wrote(cx, written)
    }

    /// Asked for when everything is written: who takes it bit by bit gains no time.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            self.taken_by = None;
        }
        self.bounded(cx, flushed)
    }

    /// A socket that is closed with something unread takes back what was answered, so that is read and dropped first.
    /// Who was silent since the last answer for long has heard it.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        ready!(self.bounded(cx, shut))?;
        let Some(answered) = self.answered else { return Poll::Ready(Ok(())) };
        let mut lingers = self.lingers.take().unwrap_or_else(|| Box::pin(sleep_until(answered + LINGER)));
        let mut bytes = [0; 8192];
        while lingers.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(_) => break,
                Poll::Pending => {
                    self.lingers = Some(lingers);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_or_next_to_nothing_is_given_up() {
        for taken in [0, 1] {
            let (ours, mut theirs) = duplex(64);
            let begun = Instant::now();
            let dribble = tokio::spawn(async move {
                while taken > 0 && theirs.read_u8().await.is_ok() {
                    sleep(TAKE_WAIT / 100).await;
                }
                std::future::pending::<()>().await;
            });
            let error = TimeoutStream::new(ours).write_all(&[0; 4096]).await.unwrap_err();
            dribble.abort();
            assert_eq!((error.kind(), begun.elapsed().as_secs()), (io::ErrorKind::TimedOut, TAKE_WAIT.as_secs()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_each_piece_in_time_may_go_on_for_as_long_as_it_likes() {
        let (ours, mut theirs) = duplex(64);
        let mut ours = TimeoutStream::new(ours);
        let (told, ()) = tokio::join!(
            async {
                for _ in 0..10 {
                    ours.write_all(&[0; 128]).await?;
                    ours.flush().await?;
                }
                io::Result::Ok(())
            },
            async {
                for _ in 0..10 {
                    sleep(TAKE_WAIT * 9 / 10).await;
                    theirs.read_exact(&mut [0; 128]).await.unwrap();
                }
            }
        );
        told.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_just_answered_is_heard_out_for_a_moment_and_who_was_not_is_not_waited_for() {
        let (ours, _silent) = duplex(64);
        let begun = Instant::now();
        TimeoutStream::new(ours).shutdown().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO, "nothing was answered");

        let (ours, _idle) = duplex(64);
        let mut ours = TimeoutStream::new(ours);
        ours.write_all(&[0; 1]).await.unwrap();
        sleep(LINGER).await;
        let begun = Instant::now();
        ours.shutdown().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO, "the answer was heard long ago");

        let (ours, mut theirs) = duplex(64);
        let mut ours = TimeoutStream::new(ours);
        ours.write_all(&[0; 1]).await.unwrap();
        let endless = tokio::spawn(async move {
            let mut said = 0;
            while theirs.write_all(&[0; 1]).await.is_ok() {
                said += 1;
                sleep(LINGER / 4).await;
            }
            said
        });
        let begun = Instant::now();
        ours.shutdown().await.unwrap();
        drop(ours);
        assert_eq!((begun.elapsed(), endless.await.unwrap()), (LINGER, 4), "between two words it is waited for, too");

        let (ours, mut theirs) = duplex(64);
        let mut ours = TimeoutStream::new(ours);
        ours.write_all(&[0; 1]).await.unwrap();
        theirs.write_all(&[0; 64]).await.unwrap();
        drop(theirs);
        let begun = Instant::now();
        ours.shutdown().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO, "it said everything");
    }
}
