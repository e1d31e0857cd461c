//! What workers know the operator by: an authority of its own, kept in a secret, and a certificate in its name.
//!
//! An authority is replaced in three steps, each of which every worker hears of before the next: another one is trusted too, then
//! that one signs, then the old one is trusted no more.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use pollux_backend_kube::{AUTHORITY_ANNOTATION, INSTANCE_LABEL, TrustedAuthorities};
use pollux_server::http::TlsFiles;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde_json::json;
use tracing::{info, warn};

use crate::OperatorError;

/// How long two authorities are trusted at a time, where the whole is not shorter.
const OVERLAP_MAX: Duration = Duration::from_secs(24 * 3600);
const LOOK_MAX: Duration = Duration::from_secs(600);

/// An authority.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Authority {
    certificate: String,
    key: String,
}

/// What the secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Authorities {
    /// The one that signs.
    current: Authority,
    /// The one that will.
    next: Option<Authority>,
    /// The certificate of the one that did.
    last: Option<String>,
    /// When this was changed, in seconds since 1970.
    since_s: u64,
}

impl Authorities {
    fn new(instance: &str, now_s: u64) -> Result<Self, OperatorError> {
        Ok(Self { current: Authority::new(instance)?, next: None, last: None, since_s: now_s })
    }

    /// The next step, if it is time for it.
    fn step(&self, instance: &str, renew_after: Duration, now_s: u64) -> Result<Option<Self>, OperatorError> {
        let age = Duration::from_secs(now_s.saturating_sub(self.since_s));
        let due = if self.next.is_none() && self.last.is_none() { renew_after } else { overlap(renew_after) };
        if age < due {
            return Ok(None);
        }
        let (current, next, last) = match (self.next.clone(), &self.last) {
            (Some(next), _) => (next, None, Some(self.current.certificate.clone())),
            (None, Some(_)) => (self.current.clone(), None, None),
            (None, None) => (self.current.clone(), Some(Authority::new(instance)?), None),
        };
        Ok(Some(Self { current, next, last, since_s: now_s }))
    }

    /// Everybody who is trusted, as PEM.
    fn trusted(&self) -> String {
        let next = self.next.as_ref().map(|next| &next.certificate);
        [Some(&self.current.certificate), next, self.last.as_ref()].into_iter().flatten().cloned().collect()
    }

    fn data(&self) -> BTreeMap<String, ByteString> {
        let next = self.next.as_ref();
        let texts = [
            ("ca.crt", Some(self.current.certificate.clone())),
            ("ca.key", Some(self.current.key.clone())),
            ("next.crt", next.map(|next| next.certificate.clone())),
            ("next.key", next.map(|next| next.key.clone())),
            ("last.crt", self.last.clone()),
            ("since", Some(self.since_s.to_string())),
        ];
        texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), ByteString(text?.into_bytes())))).collect()
    }

    fn read(secret: &Secret) -> Result<Self, OperatorError> {
        let text = |key: &str| {
            let bytes = secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone());
            bytes.and_then(|bytes| String::from_utf8(bytes).ok())
        };
        let needed = |key: &str| {
            text(key)
                .ok_or_else(|| OperatorError::Certificate(format!("the secret {} has no {key}", secret.name_any())))
        };
        let next = text("next.crt").zip(text("next.key")).map(|(certificate, key)| Authority { certificate, key });
        Ok(Self {
            current: Authority { certificate: needed("ca.crt")?, key: needed("ca.key")? },
            next,
            last: text("last.crt"),
            since_s: text("since").and_then(|since| since.parse().ok()).unwrap_or(0),
        })
    }
}

fn overlap(renew_after: Duration) -> Duration {
    (renew_after / 4).min(OVERLAP_MAX)
}

/// The authorities of one operator, and its own certificate.
#[derive(Clone)]
pub(crate) struct Certificates {
    secrets: Api<Secret>,
    client: Client,
    instance: String,
    host: String,
    renew_after: Duration,
    pub(crate) files: TlsFiles,
    /// For the pods that are made.
    pub(crate) trusted: TrustedAuthorities,
    /// Who has signed the certificate in the files.
    signed_by: Arc<Mutex<Option<Authority>>>,
}

impl Certificates {
    /// The authorities that are kept, or a new one, and a certificate in the name of this host. Every start makes another
    /// certificate, so that none gets old.
    pub(crate) async fn prepare(
        client: Client,
        namespace: &str,
        instance: &str,
        host: &str,
        folder: &Path,
        renew_after: Duration,
    ) -> Result<Self, OperatorError> {
        let certificates = Self {
            secrets: Api::namespaced(client.clone(), namespace),
            client,
            instance: instance.to_owned(),
            host: host.to_owned(),
            renew_after,
            files: TlsFiles { certificate: folder.join("tls.crt"), key: folder.join("tls.key") },
            trusted: TrustedAuthorities::default(),
            signed_by: Arc::default(),
        };
        let kept = match certificates.secrets.get_opt(&certificates.name()).await? {
            Some(secret) => secret,
            None => certificates.create().await?,
        };
        certificates.use_these(&Authorities::read(&kept)?)?;
        Ok(certificates)
    }

    fn name(&self) -> String {
        format!("{}-authority", self.instance)
    }

    async fn create(&self) -> Result<Secret, OperatorError> {
        let data = Some(Authorities::new(&self.instance, now_s())?.data());
        let metadata = ObjectMeta { name: Some(self.name()), ..ObjectMeta::default() };
        match self.secrets.create(&PostParams::default(), &Secret { metadata, data, ..Secret::default() }).await {
            Ok(secret) => Ok(secret),
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(self.secrets.get(&self.name()).await?),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces authorities when it is time, for ever.
    pub(crate) async fn renew(self) {
        let look = (overlap(self.renew_after) / 4).clamp(Duration::from_secs(1), LOOK_MAX);
        loop {
            if let Err(error) = self.look().await {
                warn!(%error, "the authority cannot be looked after; it is tried again");
            }
            tokio::time::sleep(look).await;
        }
    }

    async fn look(&self) -> Result<(), OperatorError> {
        let mut secret = self.secrets.get(&self.name()).await?;
        let kept = Authorities::read(&secret)?;
        self.use_these(&kept)?;
        // Everybody has heard of this step before the next.
        self.annotate_pods().await?;
        let Some(stepped) = kept.step(&self.instance, self.renew_after, now_s())? else { return Ok(()) };
        secret.data = Some(stepped.data());
        self.secrets.replace(&self.name(), &PostParams::default(), &secret).await?;
        let (next, last) = (stepped.next.is_some(), stepped.last.is_some());
        info!(next, last, "the authority that vouches for this operator is being replaced");
        self.use_these(&stepped)?;
        self.annotate_pods().await
    }

    /// Shows a certificate that the current authority has signed, and has new pods trust all.
    fn use_these(&self, authorities: &Authorities) -> Result<(), OperatorError> {
        self.trusted.replace(authorities.trusted());
        let mut signed_by = self.signed_by.lock().unwrap_or_else(PoisonError::into_inner);
        if signed_by.as_ref() != Some(&authorities.current) {
            let (certificate, key) = authorities.current.certify(&self.instance, &self.host)?;
            write(&self.files.certificate, &certificate)?;
            write(&self.files.key, &key)?;
            *signed_by = Some(authorities.current.clone());
        }
        Ok(())
    }

    /// Has pods that run trust the same.
    async fn annotate_pods(&self) -> Result<(), OperatorError> {
        let trusted = self.trusted.get();
        let ours = ListParams::default().labels(&format!("{INSTANCE_LABEL}={}", self.instance));
        let pods = Api::<Pod>::all(self.client.clone()).list_metadata(&ours).await?;
        let patch = json!({"metadata": {"annotations": {AUTHORITY_ANNOTATION: trusted}}});
        for pod in pods {
            if pod.annotations().get(AUTHORITY_ANNOTATION).is_none_or(|told| *told == trusted) {
                continue;
            }
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
            match pods.patch_metadata(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn write(file: &Path, text: &str) -> Result<(), OperatorError> {
    let refused = |reason| OperatorError::File { file: file.display().to_string(), reason };
    let opened = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file);
    opened.and_then(|mut opened| opened.write_all(text.as_bytes())).map_err(refused)
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn refused(error: rcgen::Error) -> OperatorError {
    OperatorError::Certificate(error.to_string())
}

impl Authority {
    fn new(instance: &str) -> Result<Self, OperatorError> {
        let key = KeyPair::generate().map_err(refused)?;
        let certificate = Self::params(instance).self_signed(&key).map_err(refused)?.pem();
        Ok(Self { certificate, key: key.serialize_pem() })
    }

    /// What an authority is known by, besides its key: the same at every start.
    fn params(instance: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("{instance} authority"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
    }

    /// A certificate for a host, and its key.
    fn certify(&self, instance: &str, host: &str) -> Result<(String, String), OperatorError> {
        let issuer = Issuer::new(Self::params(instance), KeyPair::from_pem(&self.key).map_err(refused)?);
        let key = KeyPair::generate().map_err(refused)?;
        let params = CertificateParams::new([host.to_owned()]).map_err(refused)?;
        Ok((params.signed_by(&key, &issuer).map_err(refused)?.pem(), key.serialize_pem()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RENEW_AFTER: Duration = Duration::from_secs(100);

    fn stepped(authorities: &Authorities, now_s: u64) -> Option<Authorities> {
        authorities.step("pollux", RENEW_AFTER, now_s).unwrap()
    }

    #[test]
    fn a_kept_authority_vouches_for_new_certificates() {
        let authority = Authority::new("pollux").unwrap();
        let (first, _) = authority.certify("pollux", "pollux.ns.svc").unwrap();
        let (second, _) = authority.certify("pollux", "pollux.ns.svc").unwrap();
        assert_ne!(first, second);
        let broken = Authority { key: "no key".to_owned(), ..authority };
        assert!(broken.certify("pollux", "pollux.ns.svc").is_err());
    }

    #[test]
    fn an_authority_is_trusted_before_it_signs_and_after_it_has_signed() {
        let first = Authorities::new("pollux", 1000).unwrap();
        assert_eq!(stepped(&first, 1099), None);
        let second = stepped(&first, 1100).unwrap();
        let new = second.next.clone().unwrap();
        assert_eq!((&second.current, second.since_s), (&first.current, 1100));
        assert_eq!(second.trusted(), format!("{}{}", first.current.certificate, new.certificate));
        assert_eq!(stepped(&second, 1124), None);
        let third = stepped(&second, 1125).unwrap();
        assert_eq!((&third.current, &third.next), (&new, &None));
        assert_eq!(third.trusted(), format!("{}{}", new.certificate, first.current.certificate));
        assert_eq!(stepped(&third, 1149), None);
        let fourth = stepped(&third, 1150).unwrap();
        assert_eq!(fourth.trusted(), new.certificate);
        assert_eq!(stepped(&fourth, 1249), None, "it is as new as the step");
    }

    #[test]
    fn what_is_written_into_the_secret_is_read_again() {
        let first = Authorities::new("pollux", 5).unwrap();
        let second = stepped(&first, 105).unwrap();
        let third = stepped(&second, 130).unwrap();
        for authorities in [first, second, third] {
            let secret = Secret { data: Some(authorities.data()), ..Secret::default() };
            assert_eq!(Authorities::read(&secret).unwrap(), authorities);
        }
        let error = Authorities::read(&Secret::default()).unwrap_err().to_string();
        assert_eq!(error, "certificate: the secret  has no ca.crt");
    }
}
