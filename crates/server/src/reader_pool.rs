use std::sync::{Arc, Mutex, MutexGuard};

use pollux_store::{Reader, Store, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task;

use crate::Refused;

/// So many read the journal at once.
const READERS: usize = 4;

/// Ways to read the journal beside the scheduler, so that nobody who reads waits for it.
#[derive(Clone, Debug)]
pub(crate) struct ReaderPool {
    idle: Arc<Mutex<Vec<Reader>>>,
    places: Arc<Semaphore>,
}

impl ReaderPool {
    pub(crate) fn open(store: &Store) -> Result<Self, StoreError> {
        let idle: Vec<Reader> = (0..READERS).map(|_| store.reader()).collect::<Result<_, _>>()?;
        Ok(Self { idle: Arc::new(Mutex::new(idle)), places: Arc::new(Semaphore::new(READERS)) })
    }

    /// Reads in a thread where waiting for the disk does no harm.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refused> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| Refused::Away)?;
        let idle = Arc::clone(&self.idle);
        let outcome = task::spawn_blocking(move || {
            let reader = lock(&idle).pop().ok_or(Refused::Away)?;
            let borrowed = Borrowed { reader: Some(reader), idle, _place: place };
            let outcome = borrowed.reader.as_ref().map(read).ok_or(Refused::Away)?;
            outcome.map_err(|error| Refused::Unreadable(error.to_string()))
        });
        outcome.await.unwrap_or_else(|failed| Err(if failed.is_panic() { Refused::Broken } else { Refused::Away }))
    }
}

/// A reader in use. It goes back before its place is free, whoever has left or panicked meanwhile.
struct Borrowed {
    reader: Option<Reader>,
    idle: Arc<Mutex<Vec<Reader>>>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        lock(&self.idle).extend(self.reader.take());
    }
}

fn lock(idle: &Mutex<Vec<Reader>>) -> MutexGuard<'_, Vec<Reader>> {
    idle.lock().expect("nobody panics with it")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn whoever_leaves_or_panics_while_reading_leaves_the_reader_behind() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let readers = ReaderPool::open(&store).unwrap();
        let mut releases = Vec::new();
        for _ in 0..READERS {
            let (begun, has_begun) = tokio::sync::oneshot::channel();
            let (release, released) = mpsc::channel::<()>();
            let slow = readers.clone();
            let slow = tokio::spawn(async move {
                let read = move |_: &Reader| {
                    begun.send(()).unwrap();
                    released.recv().unwrap_err();
                    Ok(())
                };
                slow.read(read).await
            });
            has_begun.await.unwrap();
            slow.abort();
            slow.await.unwrap_err();
            releases.push(release);
        }
        assert_eq!(readers.places.available_permits(), 0, "places are free when their readers are back");
        drop(releases);
        readers.read(|_| Ok(())).await.unwrap();
        for _ in 0..=READERS {
            let answer = readers.read(|_| -> Result<(), StoreError> { panic!("a broken row") }).await;
            assert_eq!(answer, Err(Refused::Broken));
        }
        readers.read(|_| Ok(())).await.unwrap();
    }
}
