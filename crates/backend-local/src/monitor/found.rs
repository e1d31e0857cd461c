//! What a daemon before this one left behind.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;
use std::{fs, io};

use pollux_backend::ReplicaId;
use tracing::{error, warn};

use super::{ProcessMonitor, watch};
use crate::folder::{Claim, Folder, is_garbled};
use crate::live::{Hold, Live, Stage, unknown_hold};

/// Replicas without an end. Those with one are many, and nothing happens to them any more.
pub(crate) fn left_behind(replicas: &Path) -> io::Result<BTreeSet<ReplicaId>> {
    let mut left_behind = all(replicas)?;
    left_behind.retain(|replica| !Folder::of(replicas, *replica).has_ended());
    Ok(left_behind)
}

/// Replicas of which anything is kept.
pub(crate) fn all(replicas: &Path) -> io::Result<BTreeSet<ReplicaId>> {
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(replicas)? {
        // Whatever else is there is not ours.
        all.extend(entry?.file_name().to_str().and_then(|name| name.parse().ok()).map(ReplicaId));
    }
    Ok(all)
}

impl ProcessMonitor {
    /// Takes note of a replica that a daemon before this one left behind without an end.
    pub(super) fn find(&mut self, replica: ReplicaId) {
        let hold = Hold::read(&self.folder(replica));
        self.live.insert(replica, Live { hold, stage: Stage::Unseen { kill_at: None } });
        self.look_for_shim(replica, false);
    }

    /// Finds out who watches over a replica that was left behind. Where the system does not say, it is asked `again`.
    pub(super) fn look_for_shim(&mut self, replica: ReplicaId, again: bool) {
        let folder = self.folder(replica);
        // From here on a shim that was started and has not said so will not carry the order out.
        let shim = match folder.claim(Claim::Void) {
            Ok(Claim::Shim(process)) => process.open(),
            // Nothing of it has run, so that it may be ordered anew.
            Ok(Claim::Void) if folder.remove().is_ok() => {
                self.live.remove(&replica);
                if again {
                    self.observe_end(replica);
                }
                return;
            }
            Ok(Claim::Void) => Ok(None),
            Err(error) if is_garbled(&error) => {
                warn!(replica = replica.0, %error, "nobody knows who watches over a replica from before");
                Ok(None)
            }
            Err(error) => Err(error),
        };
        let Some(live) = self.live.get_mut(&replica) else { return };
        match shim {
            Ok(Some(shim)) => {
                if live.hold == Hold::Unknown {
                    error!("{}", unknown_hold(replica));
                }
                let Stage::Unseen { kill_at } = live.stage else { return };
                let starting = watch(&self.folders, &folder);
                let starting = starting.inspect_err(|error| {
                    warn!(replica = replica.0, %error, "its start may be noticed late");
                });
                live.stage = Stage::Shimmed { shim, kill_at: None, starting: starting.ok() };
                self.look_for_starts();
                if let Some(at) = kill_at {
                    self.stop(replica, at.saturating_duration_since(Instant::now()));
                }
            }
            Ok(None) => {
                live.stage = Stage::Lost { leftovers: Vec::new() };
                self.conclude(replica);
            }
            Err(error) if !again => {
                warn!(replica = replica.0, %error, "who watches over it cannot be seen at the moment");
            }
            Err(_) => {}
        }
    }
}
