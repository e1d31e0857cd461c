//! Which scheduler may act: the highest epoch, in an object of the cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use pollux_backend::Epoch;
use thiserror::Error;

use crate::KubeSettings;
use crate::names::{MANAGER, epoch};

const KEY: &str = "epoch";

/// Why an order is not carried out.
#[derive(Debug, Error)]
pub enum Refused {
    /// Another scheduler has taken over.
    #[error("superseded by {0}")]
    Superseded(Epoch),
    /// What is kept makes no sense.
    #[error("the epoch in {name} cannot be read: {text:?}, expected a whole number")]
    Unreadable {
        /// Of which object.
        name: String,
        /// What it holds.
        text: Option<String>,
    },
    /// The cluster did not do what was asked.
    #[error(transparent)]
    Cluster(#[from] kube::Error),
}

/// Lets orders of the highest epoch pass.
#[derive(Clone)]
pub struct EpochGate {
    maps: Api<ConfigMap>,
    name: String,
}

impl std::fmt::Debug for EpochGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpochGate").field("name", &self.name).finish_non_exhaustive()
    }
}

impl EpochGate {
    /// Of a scheduler with these settings.
    pub fn new(client: Client, settings: &KubeSettings) -> Self {
        let maps = Api::namespaced(client, &settings.namespace);
        Self { maps, name: format!("{}-epoch", settings.instance) }
    }

    /// The highest epoch in whose name something was done; 0 if nothing was.
    pub async fn highest(&self) -> Result<Epoch, Refused> {
        match self.maps.get_opt(&self.name).await? {
            None => Ok(Epoch(0)),
            Some(map) => self.read(&map),
        }
    }

    fn read(&self, map: &ConfigMap) -> Result<Epoch, Refused> {
        let text = map.data.as_ref().and_then(|data| data.get(KEY));
        epoch(text).ok_or_else(|| Refused::Unreadable { name: self.name.clone(), text: text.cloned() })
    }

    /// A higher epoch is written before anything is done in its name.
    pub(crate) async fn pass(&self, asked: Epoch) -> Result<(), Refused> {
        loop {
            let written = match self.maps.get_opt(&self.name).await? {
                None => self.maps.create(&params(), &self.map(asked, None)).await,
                Some(map) => {
                    let highest = self.read(&map)?;
                    if highest > asked {
                        return Err(Refused::Superseded(highest));
                    }
                    if highest == asked {
                        return Ok(());
                    }
                    let map = self.map(asked, map.metadata.resource_version);
                    self.maps.replace(&self.name, &params(), &map).await
                }
            };
            match written {
                Ok(_) => return Ok(()),
                // Somebody else wrote first: look again.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn map(&self, epoch: Epoch, resource_version: Option<String>) -> ConfigMap {
        let metadata = ObjectMeta { name: Some(self.name.clone()), resource_version, ..ObjectMeta::default() };
        let data = BTreeMap::from([(KEY.to_owned(), epoch.0.to_string())]);
        ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }
    }
}

fn params() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}
