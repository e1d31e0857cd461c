//! The cluster's own authority: certificates, keys and the configurations of clients that use them.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;

use crate::error::{TestbedError, at};

/// Who may do everything.
pub(crate) const ADMINISTRATORS: &str = "system:masters";

/// A folder of certificates, all signed by the authority in it.
#[derive(Clone, Debug)]
pub(crate) struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    pub(crate) fn open(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Makes the authority and the key that signs the tokens of service accounts.
    pub(crate) fn create(folder: &Path) -> Result<Self, TestbedError> {
        fs::create_dir(folder).map_err(at(folder))?;
        let this = Self::open(folder);
        let key = KeyPair::generate()?;
        this.write("ca.crt", &authority()?.self_signed(&key)?.pem())?;
        this.write("ca.key", &key.serialize_pem())?;
        let tokens = KeyPair::generate()?;
        this.write("tokens.key", &tokens.serialize_pem())?;
        this.write("tokens.pub", &tokens.public_key_pem())?;
        Ok(this)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes a certificate for a user or server of that name.
    pub(crate) fn issue(&self, file: &str, name: &str, group: &str, addresses: &[&str]) -> Result<(), TestbedError> {
        let path = self.file("ca.key");
        let authority_key = KeyPair::from_pem(&fs::read_to_string(&path).map_err(at(&path))?)?;
        let issuer = Issuer::new(authority()?, authority_key);
        let names: Vec<String> = addresses.iter().map(|&address| address.to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        self.write(&format!("{file}.crt"), &params.signed_by(&key, &issuer)?.pem())?;
        self.write(&format!("{file}.key"), &key.serialize_pem())
    }

    /// Writes how a client reaches the API server with a certificate that was issued.
    pub(crate) fn configure(&self, file: &str, server: &str) -> Result<PathBuf, TestbedError> {
        let path = format!("{file}.kubeconfig");
        let user = json!({
            "client-certificate": self.file(&format!("{file}.crt")),
            "client-key": self.file(&format!("{file}.key")),
        });
        let configuration = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "testbed",
                "cluster": {"server": server, "certificate-authority": self.file("ca.crt")},
            }],
            "users": [{"name": file, "user": user}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": file}}],
            "current-context": "testbed",
        });
        self.write(&path, &configuration.to_string())?;
        Ok(self.file(&path))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), TestbedError> {
        let path = self.file(name);
        fs::write(&path, text).map_err(at(&path))
    }
}

/// The same every time: only its key is kept.
fn authority() -> Result<CertificateParams, TestbedError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "pollux-testbed");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
}
