use std::sync::{Arc, Mutex, MutexGuard};

use pollux_store::{Reader, Store, StoreError};
use tokio::sync::Semaphore;
use tokio::task;

use crate::Refused;

/// So many read the journal at once.
const READERS: usize = 4;

/// Ways to read the journal beside the scheduler, so that nobody who reads waits for it.
#[derive(Clone, Debug)]
pub(crate) struct Readers {
    idle: Arc<Mutex<Vec<Reader>>>,
    places: Arc<Semaphore>,
}

impl Readers {
    pub(crate) fn open(store: &Store) -> Result<Self, StoreError> {
        let idle: Vec<Reader> = (0..READERS).map(|_| store.reader()).collect::<Result<_, _>>()?;
        Ok(Self { idle: Arc::new(Mutex::new(idle)), places: Arc::new(Semaphore::new(READERS)) })
    }

    /// Reads in a thread where waiting for the disk does no harm.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refused> {
        let _place = self.places.acquire().await.map_err(|_| Refused::Away)?;
        let idle = Arc::clone(&self.idle);
        let outcome = task::spawn_blocking(move || {
            let reader = lock(&idle).pop().ok_or(Refused::Away)?;
            let outcome = read(&reader);
            lock(&idle).push(reader);
            outcome.map_err(|error| Refused::Unreadable(error.to_string()))
        });
        outcome.await.unwrap_or(Err(Refused::Away))
    }
}

fn lock(idle: &Mutex<Vec<Reader>>) -> MutexGuard<'_, Vec<Reader>> {
    idle.lock().expect("nobody panics with it")
}
