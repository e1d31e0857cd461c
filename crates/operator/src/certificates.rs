//! What workers know the operator by: an authority of its own, kept in a secret, and a certificate in its name.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use pollux_server::http::TlsFiles;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::OperatorError;

const AUTHORITY: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";

/// Who vouches for the operator, and the files of its own certificate.
#[derive(Debug)]
pub(crate) struct Certificates {
    /// PEM, for workers.
    pub(crate) authority: String,
    pub(crate) files: TlsFiles,
}

impl Certificates {
    /// The authority that is kept, or a new one, and a certificate of its for these names. Every start makes another
    /// certificate, so that none gets old.
    pub(crate) async fn prepare(
        client: Client,
        namespace: &str,
        instance: &str,
        names: &[String],
        folder: &Path,
    ) -> Result<Self, OperatorError> {
        let secrets: Api<Secret> = Api::namespaced(client, namespace);
        let name = format!("{instance}-authority");
        let kept = match secrets.get_opt(&name).await? {
            Some(secret) => secret,
            None => {
                let (certificate, key) = make_authority(instance)?;
                let data = [(AUTHORITY, certificate), (AUTHORITY_KEY, key)];
                let data = data.map(|(name, text)| (name.to_owned(), ByteString(text.into_bytes())));
                let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
                let secret = Secret { metadata, data: Some(BTreeMap::from(data)), ..Secret::default() };
                match secrets.create(&PostParams::default(), &secret).await {
                    Ok(secret) => secret,
                    // Another replica was faster.
                    Err(kube::Error::Api(status)) if status.code == 409 => secrets.get(&name).await?,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let text = |key: &str| {
            let bytes = kept.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone());
            bytes
                .and_then(|bytes| String::from_utf8(bytes).ok())
                .ok_or_else(|| OperatorError::Certificate(format!("the secret {name} has no {key}")))
        };
        let (authority, authority_key) = (text(AUTHORITY)?, text(AUTHORITY_KEY)?);
        let (certificate, key) = make_certificate(instance, &authority_key, names)?;
        let files =
            TlsFiles { certificate: write(folder, "tls.crt", &certificate)?, key: write(folder, "tls.key", &key)? };
        Ok(Self { authority, files })
    }
}

fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf, OperatorError> {
    let file = folder.join(name);
    let refused = |reason| OperatorError::File { file: file.display().to_string(), reason };
    let opened = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&file);
    opened.and_then(|mut opened| opened.write_all(text.as_bytes())).map_err(refused)?;
    Ok(file)
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn refused(error: rcgen::Error) -> OperatorError {
    OperatorError::Certificate(error.to_string())
}

/// What an authority is known by: the same at every start.
fn authority_of(instance: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("{instance} authority"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn make_authority(instance: &str) -> Result<(String, String), OperatorError> {
    let key = KeyPair::generate().map_err(refused)?;
    Ok((authority_of(instance).self_signed(&key).map_err(refused)?.pem(), key.serialize_pem()))
}

fn make_certificate(instance: &str, authority_key: &str, names: &[String]) -> Result<(String, String), OperatorError> {
    let authority_key = KeyPair::from_pem(authority_key).map_err(refused)?;
    let issuer = Issuer::new(authority_of(instance), authority_key);
    let params = CertificateParams::new(names).map_err(refused)?;
    let key = KeyPair::generate().map_err(refused)?;
    Ok((params.signed_by(&key, &issuer).map_err(refused)?.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_authority_vouches_for_new_certificates() {
        let (_, key) = make_authority("pollux").unwrap();
        let (first, _) = make_certificate("pollux", &key, &["pollux.ns.svc".to_owned()]).unwrap();
        let (second, _) = make_certificate("pollux", &key, &["pollux.ns.svc".to_owned()]).unwrap();
        assert_ne!(first, second);
        assert!(make_certificate("pollux", "no key", &[]).is_err());
    }
}
