//! Who of several replicas acts: the one that holds a Lease. Orders of another are refused by their epoch all the same.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{sleep, timeout, timeout_at};
use tracing::{info, warn};

use crate::term::Term;

/// The label of the pod that leads.
const LEADS_LABEL: &str = "pollux.dev/leads";
/// After so long without a word others take over, by what they have seen themselves.
pub(crate) const LEASE: Duration = Duration::from_secs(15);
/// Who cannot renew for so long acts no more, well before others do.
const TERM: Duration = Duration::from_secs(10);
const RENEW: Duration = Duration::from_secs(3);
/// What one attempt may take, and how soon another follows.
const ATTEMPT: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(500);

/// A Lease that this replica wants or holds.
#[derive(Clone)]
pub(crate) struct Leadership {
    leases: Api<Lease>,
    pods: Api<Pod>,
    name: String,
    holder: String,
    term: Term,
}

/// What another holder has said last, and when that was seen here: clocks may differ.
#[derive(Debug, Default)]
struct Watched {
    said: Option<(Option<String>, Option<MicroTime>)>,
    since: Option<Instant>,
}

impl Watched {
    /// Whether the holder was silent for too long.
    fn has_expired(&mut self, lease: &LeaseSpec, now: Instant) -> bool {
        let said = Some((lease.holder_identity.clone(), lease.renew_time.clone()));
        if self.said != said {
            (self.said, self.since) = (said, Some(now));
        }
        let is_free = lease.holder_identity.as_ref().is_none_or(String::is_empty);
        is_free || self.since.is_some_and(|since| now.duration_since(since) >= LEASE)
    }
}

impl Leadership {
    pub(crate) fn new(client: Client, namespace: &str, name: &str, holder: &str) -> Self {
        let (leases, pods) = (Api::namespaced(client.clone(), namespace), Api::namespaced(client, namespace));
        Self { leases, pods, name: name.to_owned(), holder: holder.to_owned(), term: Term::new() }
    }

    /// How long this replica may act.
    pub(crate) const fn term(&self) -> &Term {
        &self.term
    }

    /// Waits until this replica leads.
    pub(crate) async fn acquire(&self) {
        let mut watched = Watched::default();
        let mut has_said = false;
        loop {
            let asked = Instant::now();
            match timeout(ATTEMPT, self.try_acquire(&mut watched)).await {
                Ok(Ok(true)) => {
                    self.term.extend_to(asked + TERM);
                    return info!(holder = self.holder, "this replica leads");
                }
                Ok(Ok(false)) if !has_said => {
                    info!("another replica leads; this one waits");
                    has_said = true;
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) => warn!(%error, "who leads is not known; it is tried again"),
                Err(_) => warn!("who leads is not known: no answer; it is tried again"),
            }
            sleep(RENEW / 2).await;
        }
    }

    async fn try_acquire(&self, watched: &mut Watched) -> Result<bool, kube::Error> {
        let Some(lease) = self.leases.get_opt(&self.name).await? else {
            let made = self.leases.create(&PostParams::default(), &self.lease(None)).await;
            return conflict_is_false(made.map(drop));
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.holder) && !watched.has_expired(&spec, Instant::now()) {
            return Ok(false);
        }
        self.write(&self.lease(Some(&lease))).await
    }

    /// Says that this replica still leads; returns why when it no longer does. Nothing is written from then on.
    pub(crate) async fn hold(&self) -> String {
        let mut wait = RENEW;
        loop {
            sleep(wait).await;
            let asked = Instant::now();
            wait = RETRY;
            match timeout_at(self.term.end().min(asked + ATTEMPT).into(), self.renew()).await {
                _ if self.term.is_over() => return format!("the lease could not be renewed for {} s", TERM.as_secs()),
                Ok(Ok(true)) => {
                    self.term.extend_to(asked + TERM);
                    wait = RENEW;
                }
                Ok(Ok(false)) => {
                    self.term.give_up();
                    return "another replica holds the lease".to_owned();
                }
                Ok(Err(error)) => warn!(%error, "the lease cannot be renewed; it is tried again"),
                Err(_) => warn!("the lease cannot be renewed: no answer; it is tried again"),
            }
        }
    }

    async fn renew(&self) -> Result<bool, kube::Error> {
        let lease = self.leases.get(&self.name).await?;
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
        if holder.as_deref() != Some(&self.holder) {
            return Ok(false);
        }
        self.write(&self.lease(Some(&lease))).await
    }

    /// Has the Service lead to this replica, and to no other.
    pub(crate) async fn announce(&self) -> Result<(), kube::Error> {
        let own = json!({"metadata": {"labels": {LEADS_LABEL: self.name}}});
        let none = json!({"metadata": {"labels": {LEADS_LABEL: null}}});
        let leading = ListParams::default().labels(&format!("{LEADS_LABEL}={}", self.name));
        let others = self.pods.list_metadata(&leading).await?.items.into_iter().map(|pod| pod.name_any());
        let others = others.filter(|name| *name != self.holder).map(|name| (name, &none));
        for (name, labels) in others.chain([(self.holder.clone(), &own)]) {
            match self.pods.patch(&name, &PatchParams::default(), &Patch::Merge(labels)).await {
                Ok(_) => {}
                // One that is gone leads nobody, and elsewhere than in a pod there is none.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Lets another replica lead at once. Where that cannot be said, others find out in time.
    pub(crate) async fn release(&self) {
        self.term.give_up();
        let say = async {
            let mut lease = self.leases.get(&self.name).await?;
            if let Some(spec) = lease.spec.as_mut().filter(|it| it.holder_identity.as_deref() == Some(&self.holder)) {
                spec.holder_identity = None;
                self.leases.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match timeout(ATTEMPT, say).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "the lease cannot be given back"),
            Err(_) => warn!("the lease cannot be given back: no answer"),
        }
    }

    async fn write(&self, lease: &Lease) -> Result<bool, kube::Error> {
        conflict_is_false(self.leases.replace(&self.name, &PostParams::default(), lease).await.map(drop))
    }

    fn lease(&self, before: Option<&Lease>) -> Lease {
        let now = MicroTime(jiff::Timestamp::now());
        let earlier = before.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let is_new = earlier.holder_identity.as_deref() != Some(&self.holder);
        let transitions = earlier.lease_transitions.unwrap_or(0) + i32::from(is_new && before.is_some());
        let metadata = before.map_or_else(
            || ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            |lease| lease.metadata.clone(),
        );
        let spec = LeaseSpec {
            holder_identity: Some(self.holder.clone()),
            lease_duration_seconds: i32::try_from(LEASE.as_secs()).ok(),
            acquire_time: if is_new { Some(now.clone()) } else { earlier.acquire_time },
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        };
        Lease { metadata, spec: Some(spec) }
    }
}

fn conflict_is_false(outcome: Result<(), kube::Error>) -> Result<bool, kube::Error> {
    match outcome {
        Ok(()) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            renew_time: Some(MicroTime(jiff::Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_holder_is_judged_by_when_its_words_were_seen_not_by_its_clock() {
        let (mut watched, now) = (Watched::default(), Instant::now());
        assert!(!watched.has_expired(&lease("a", 5), now), "however old it says that it is");
        assert!(!watched.has_expired(&lease("a", 6), now + LEASE), "it has spoken");
        assert!(!watched.has_expired(&lease("a", 6), now + LEASE + LEASE / 2));
        assert!(watched.has_expired(&lease("a", 6), now + 2 * LEASE));
    }

    #[test]
    fn a_lease_that_nobody_holds_is_free() {
        assert!(Watched::default().has_expired(&LeaseSpec::default(), Instant::now()));
    }
}
