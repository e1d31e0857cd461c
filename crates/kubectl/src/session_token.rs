use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Mutex;

use crate::KubectlError;

/// The shortest that Kubernetes gives.
const LIFETIME_S: i64 = 600;
/// When another one is asked for.
const REFRESH: Duration = Duration::from_secs(300);

/// A token of a service account, meant for the operator and nobody else.
pub(crate) struct SessionToken {
    accounts: Api<ServiceAccount>,
    namespace: String,
    account: String,
    audience: String,
    newest: Mutex<Option<(Instant, String)>>,
}

impl SessionToken {
    pub(crate) fn new(client: Client, namespace: &str, account: &str, audience: String) -> Self {
        let accounts = Api::namespaced(client, namespace);
        let (namespace, account) = (namespace.to_owned(), account.to_owned());
        Self { accounts, namespace, account, audience, newest: Mutex::default() }
    }

    /// One that is good for some minutes more.
    pub(crate) async fn get(&self) -> Result<String, KubectlError> {
        let mut newest = self.newest.lock().await;
        if let Some((since, token)) = &*newest
            && since.elapsed() < REFRESH
        {
            return Ok(token.clone());
        }
        let token = self.ask().await?;
        *newest = Some((Instant::now(), token.clone()));
        Ok(token)
    }

    async fn ask(&self) -> Result<String, KubectlError> {
        let refused = |message: String| {
            let (namespace, account) = (self.namespace.clone(), self.account.clone());
            KubectlError::Token { namespace, account, message }
        };
        let spec = TokenRequestSpec {
            audiences: vec![self.audience.clone()],
            expiration_seconds: Some(LIFETIME_S),
            bound_object_ref: None,
        };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let asked: Result<TokenRequest, kube::Error> =
            self.accounts.create_subresource("token", &self.account, &PostParams::default(), &request).await;
        match asked {
            Ok(answer) => answer.status.map(|status| status.token).ok_or_else(|| refused("none was given".to_owned())),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Err(refused(status.message)),
            Err(error) => Err(error.into()),
        }
    }
}
