use std::thread;
use std::time::{Duration, Instant};

use pollux_client::Client;

use super::LiveError;
use crate::output;

/// A server that is started anew is there again by then.
const WAIT_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);

/// Waits for a server that has gone away, and not for ever.
#[derive(Debug, Default)]
pub(super) struct Reconnect {
    since: Option<Instant>,
}

impl Reconnect {
    /// It is there again.
    pub(super) const fn renew(&mut self) {
        self.since = None;
    }

    /// Waits a little before the next attempt.
    pub(super) fn wait(&mut self, client: &Client) -> Result<(), LiveError> {
        let since = *self.since.get_or_insert_with(|| {
            output::note(&format!("the server at {} does not answer; jobs keep running; waiting for it", client.url()));
            Instant::now()
        });
        if since.elapsed() > WAIT_MAX {
            return Err(LiveError::ShutDown { url: client.url().to_owned() });
        }
        thread::sleep(PAUSE);
        Ok(())
    }
}
