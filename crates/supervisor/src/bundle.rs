//! Several replicas in one pod: what each is to run with, and how each ended.

use std::collections::BTreeMap;

use pollux_backend::ReplicaId;
use serde::{Deserialize, Serialize};

use crate::Ending;

/// Of what is written into pods. A later one would be another.
const VERSION: u32 = 1;

/// The replicas of a pod that holds several, as its supervisor finds them in the variable [`Bundle::VARIABLE`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    version: u32,
    /// In the order of their places on the node.
    pub replicas: Vec<Place>,
}

/// What sets a replica apart from the others of its pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its number.
    pub replica: ReplicaId,
    /// GPUs that it has, of those of the pod: the next ones after those of the replicas before.
    pub gpus: u32,
    /// Variables beside those that all have.
    pub environment: BTreeMap<String, String>,
}

impl Bundle {
    /// Where the container has it.
    pub const VARIABLE: &str = "POLLUX_REPLICAS";

    /// Of these replicas.
    pub const fn new(replicas: Vec<Place>) -> Self {
        Self { version: VERSION, replicas }
    }

    /// As it is written into a pod.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("our own records have text for keys")
    }

    /// Reads what was written into a pod.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let bundle: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match bundle.version {
            VERSION if !bundle.replicas.is_empty() => Ok(bundle),
            VERSION => Err("no replicas; expected one or more".to_owned()),
            other => Err(format!("version {other}; expected {VERSION}")),
        }
    }
}

/// Replicas of a pod that ended alike, each with the bytes that it wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedAlike {
    /// How.
    pub ending: Ending,
    /// Who.
    pub replicas: Vec<(ReplicaId, u64)>,
}

/// Groups ends, so that those of many fit into the few bytes that a kubelet keeps.
pub(crate) fn alike(ends: impl Iterator<Item = (ReplicaId, Ending, u64)>) -> Vec<EndedAlike> {
    let mut groups: Vec<EndedAlike> = Vec::new();
    for (replica, ending, written) in ends {
        match groups.iter_mut().find(|group| group.ending == ending) {
            Some(group) => group.replicas.push((replica, written)),
            None => groups.push(EndedAlike { ending, replicas: vec![(replica, written)] }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use pollux_backend::Exit;

    use super::*;

    #[test]
    fn what_is_written_into_a_pod_is_read_again_and_another_version_is_refused() {
        let environment = BTreeMap::from([("RANK".to_owned(), "3".to_owned())]);
        let bundle = Bundle::new(vec![Place { replica: ReplicaId(17), gpus: 2, environment }]);
        let text = bundle.to_text();
        assert_eq!(text, r#"{"version":1,"replicas":[{"replica":17,"gpus":2,"environment":{"RANK":"3"}}]}"#);
        assert_eq!(Bundle::from_text(&text), Ok(bundle));
        let later = text.replace("\"version\":1", "\"version\":2,\"more\":0");
        assert_eq!(Bundle::from_text(&later).unwrap_err(), "version 2; expected 1");
        assert!(Bundle::from_text("{}").is_err());
    }

    #[test]
    fn ends_that_are_alike_are_told_once() {
        let stopped = Ending::Exited(Exit::Code(143));
        let failed = Ending::Exited(Exit::Code(1));
        let ends = [(1, &stopped, 10), (2, &failed, 20), (3, &stopped, 30)];
        let groups = alike(ends.into_iter().map(|(id, ending, written)| (ReplicaId(id), ending.clone(), written)));
        let expected = [(stopped, vec![(ReplicaId(1), 10), (ReplicaId(3), 30)]), (failed, vec![(ReplicaId(2), 20)])];
        assert_eq!(groups, expected.map(|(ending, replicas)| EndedAlike { ending, replicas }));
    }
}
