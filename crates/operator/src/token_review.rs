//! Whom a service-account token names, as the API server says. People ask for one with their own rights; pods of jobs have
//! one in a file.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use pollux_backend_kube::job_of_pod;
use pollux_server::http::{Authenticator, Identity, Unverified, Verification};
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// How long an answer of the API server counts. A token of a pod that is gone opens its job for so long.
const GOOD: Duration = Duration::from_secs(60);
const BAD: Duration = Duration::from_secs(10);
const REMEMBERED_MAX: usize = 20_000;
/// Questions to the API server at once, and how long one may take with its wait.
const QUESTIONS_MAX: usize = 32;
const PATIENCE: Duration = Duration::from_secs(10);
/// Far above any token.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
/// Says which pod a token is bound to.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";

/// Whose a token is, and until when that counts.
type Verdict = (Instant, Option<Identity>);

/// Asks the API server about tokens, and remembers what it said for a while.
#[derive(Clone)]
pub(crate) struct TokenReviews(Arc<Inner>);

struct Inner {
    reviews: Api<TokenReview>,
    access: Api<SubjectAccessReview>,
    /// Whom a token must be meant for.
    audience: String,
    /// The operator's own: who may have tokens there may see and do everything.
    namespace: String,
    runtime: Handle,
    questions: Semaphore,
    remembered: Mutex<HashMap<[u8; 32], Verdict>>,
}

impl fmt::Debug for TokenReviews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenReviews").field("audience", &self.0.audience).finish_non_exhaustive()
    }
}

impl TokenReviews {
    pub(crate) fn new(client: Client, audience: &str, namespace: &str, runtime: Handle) -> Self {
        Self(Arc::new(Inner {
            reviews: Api::all(client.clone()),
            access: Api::all(client),
            audience: audience.to_owned(),
            namespace: namespace.to_owned(),
            runtime,
            questions: Semaphore::new(QUESTIONS_MAX),
            remembered: Mutex::default(),
        }))
    }

    fn recall(&self, digest: &[u8; 32]) -> Option<Option<Identity>> {
        let remembered = self.0.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.get(digest).filter(|(until, _)| Instant::now() < *until).map(|(_, identity)| identity.clone())
    }

    fn remember(&self, digest: [u8; 32], identity: Option<Identity>) {
        let now = Instant::now();
        let until = now + if identity.is_some() { GOOD } else { BAD };
        let mut remembered = self.0.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= REMEMBERED_MAX {
            remembered.retain(|_, (until, _)| now < *until);
        }
        // Whoever sends more tokens than that has each of them asked about.
        if remembered.len() < REMEMBERED_MAX {
            remembered.insert(digest, (until, identity));
        }
    }

    async fn ask(&self, token: &str) -> Result<Option<Identity>, Unverified> {
        let _place = self.0.questions.acquire().await.map_err(|error| Unverified(error.to_string()))?;
        if let Some(user) = self.review(token, Some(&self.0.audience)).await? {
            return Ok(identity(&user, &self.0.namespace));
        }
        // One that is meant for the API server is good for numbers, if its rights there say so.
        let Some(user) = self.review(token, None).await? else { return Ok(None) };
        let name = user.username.clone().unwrap_or_default();
        Ok(self.may_scrape(user).await?.then_some(Identity::Monitor(name)))
    }

    /// Whose a token is, if it is valid and meant for this audience, or for the API server.
    async fn review(&self, token: &str, audience: Option<&String>) -> Result<Option<UserInfo>, Unverified> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: audience.map(|one| vec![one.clone()]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = self.0.reviews.create(&PostParams::default(), &review).await.map_err(unverified)?;
        let status = answer.status.unwrap_or_default();
        let meant_for = status.audiences.unwrap_or_default();
        let is_valid = status.authenticated == Some(true) && audience.is_none_or(|one| meant_for.contains(one));
        Ok(status.user.filter(|_| is_valid))
    }

    async fn may_scrape(&self, user: UserInfo) -> Result<bool, Unverified> {
        let path = NonResourceAttributes { path: Some("/metrics".to_owned()), verb: Some("get".to_owned()) };
        let spec = SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            non_resource_attributes: Some(path),
            resource_attributes: None,
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer = self.0.access.create(&PostParams::default(), &review).await.map_err(unverified)?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn unverified(error: kube::Error) -> Unverified {
    Unverified(error.to_string())
}

impl Authenticator for TokenReviews {
    fn verify<'a>(&'a self, token: &'a str) -> Verification<'a> {
        Box::pin(async move {
            // Those of service accounts have three parts.
            if token.len() > TOKEN_BYTES_MAX || token.split('.').count() != 3 {
                return Ok(None);
            }
            let digest = Sha256::digest(token.as_bytes()).into();
            if let Some(identity) = self.recall(&digest) {
                return Ok(identity);
            }
            // In the runtime of the client, whoever asks.
            let (own, token) = (self.clone(), token.to_owned());
            let asking = self.0.runtime.spawn(async move { tokio::time::timeout(PATIENCE, own.ask(&token)).await });
            let late = || Unverified(format!("the API server gives no answer within {} s", PATIENCE.as_secs()));
            let answer = asking.await.map_err(|error| Unverified(error.to_string()))?;
            let identity = answer.unwrap_or_else(|_| Err(late()))?;
            self.remember(digest, identity.clone());
            Ok(identity)
        })
    }
}

/// Who a user of the API server is here: service accounts only. A token that is bound to a pod is that of a worker, and
/// counts for the job of that pod.
fn identity(user: &UserInfo, own_namespace: &str) -> Option<Identity> {
    let name = user.username.as_deref()?;
    let (namespace, _) = name.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
    let no_extra = BTreeMap::new();
    let extra = user.extra.as_ref().unwrap_or(&no_extra);
    match extra.get(POD_NAME).map(Vec::as_slice) {
        Some([pod]) => Some(Identity::Worker { job: job_of_pod(pod)?, owner: namespace.to_owned() }),
        Some(_) => None,
        None if namespace == own_namespace => Some(Identity::User(name.to_owned())),
        None => Some(Identity::Viewer(namespace.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use pollux_job::JobId;
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "it is what json! makes")]
    fn named(name: &str, extra: Value) -> Option<Identity> {
        identity(&serde_json::from_value(json!({"username": name, "extra": extra})).unwrap(), "pollux")
    }

    #[test]
    fn a_service_account_sees_its_namespace_and_that_of_the_operator_all() {
        let account = "system:serviceaccount:team:default";
        assert_eq!(named(account, json!({})), Some(Identity::Viewer("team".to_owned())));
        let own = "system:serviceaccount:pollux:default";
        assert_eq!(named(own, json!(null)), Some(Identity::User(own.to_owned())));
        for other in ["admin", "system:node:a", "system:serviceaccount:", "system:serviceaccount:team"] {
            assert_eq!(named(other, json!({})), None, "{other}");
        }
    }

    #[test]
    fn a_pod_speaks_for_the_job_in_its_name_and_another_for_nobody() {
        let of = |namespace: &str, pod: Value| {
            named(&format!("system:serviceaccount:{namespace}:default"), json!({ POD_NAME: pod }))
        };
        let worker = |owner: &str| Some(Identity::Worker { job: JobId(4), owner: owner.to_owned() });
        assert_eq!(of("team", json!(["pollux-4-17"])), worker("team"));
        assert_eq!(of("pollux", json!(["pollux-4-17"])), worker("pollux"), "no pod sees all");
        for other in
            [json!(["web-1"]), json!(["pollux-4"]), json!(["pollux--1"]), json!(["pollux-4-17", "x"]), json!([])]
        {
            assert_eq!(of("team", other.clone()), None, "{other}");
        }
    }
}
