//! What the keys of groups are made from: kept in a secret, for operators come and go while jobs train.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use pollux_server::{GROUP_SECRET_FILE, random_token};

use crate::OperatorError;

const KEY: &str = "secret";

/// Puts the one that is kept, or a new one, where the server looks for it.
pub(crate) async fn prepare(
    client: Client,
    namespace: &str,
    instance: &str,
    folder: &Path,
) -> Result<(), OperatorError> {
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let name = format!("{instance}-groups");
    let kept = match secrets.get_opt(&name).await? {
        Some(secret) => secret,
        None => {
            let random = random_token().map_err(|error| OperatorError::Secret(error.to_string()))?;
            let data = BTreeMap::from([(KEY.to_owned(), ByteString(random.into_bytes()))]);
            let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
            let secret = Secret { metadata, data: Some(data), immutable: Some(true), ..Secret::default() };
            match secrets.create(&PostParams::default(), &secret).await {
                Ok(secret) => secret,
                // Another replica was faster.
                Err(kube::Error::Api(status)) if status.code == 409 => secrets.get(&name).await?,
                Err(error) => return Err(error.into()),
            }
        }
    };
    let text = kept.data.as_ref().and_then(|data| data.get(KEY)).map(|bytes| bytes.0.clone());
    let text = text.ok_or_else(|| OperatorError::Secret(format!("the secret {name} has no {KEY}")))?;
    let file = folder.join(GROUP_SECRET_FILE);
    let refused = |reason| OperatorError::File { file: file.display().to_string(), reason };
    let mut opened =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&file).map_err(refused)?;
    opened.write_all(&text).map_err(refused)
}
