use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::KubectlError;

/// Which cluster, and as whom.
#[derive(Clone, Debug)]
pub struct Access {
    /// Instead of those of the environment.
    pub kubeconfig: Option<PathBuf>,
    /// Instead of the current one.
    pub context: Option<String>,
    /// Instead of that of the context.
    pub namespace: Option<String>,
    /// Jobs of all namespaces, for those who may have a token in the operator's.
    pub all_namespaces: bool,
    /// A service account of the namespace, whose token shows the operator that the user has rights there.
    pub service_account: String,
    /// Which operator.
    pub operator: OperatorName,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            namespace: None,
            all_namespaces: false,
            service_account: "default".to_owned(),
            operator: OperatorName::default(),
        }
    }
}

/// The Service of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorName {
    /// Where it is.
    pub namespace: String,
    /// What it is called: the release of the chart.
    pub name: String,
}

impl OperatorName {
    /// Whom tokens for it are meant for.
    pub fn audience(&self) -> String {
        format!("https://{}.{}.svc", self.name, self.namespace)
    }

    /// The way to it through the API server.
    pub(crate) fn proxy_path(&self) -> String {
        format!("/api/v1/namespaces/{}/services/https:{}:https/proxy", self.namespace, self.name)
    }
}

impl Default for OperatorName {
    fn default() -> Self {
        Self { namespace: "pollux".to_owned(), name: "pollux".to_owned() }
    }
}

impl fmt::Display for OperatorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for OperatorName {
    type Err = KubectlError;

    fn from_str(text: &str) -> Result<Self, KubectlError> {
        // It becomes part of a path.
        let is_name = |part: &&str| {
            let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            !part.is_empty() && part.len() <= 63 && part.bytes().all(is_letter)
        };
        match text.split('/').collect::<Vec<_>>()[..] {
            [namespace, name] if [namespace, name].iter().all(is_name) => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(KubectlError::OperatorName(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_named_by_its_namespace_and_service() {
        let operator: OperatorName = "gpus/main".parse().unwrap();
        assert_eq!(operator.audience(), "https://main.gpus.svc");
        assert_eq!(operator.proxy_path(), "/api/v1/namespaces/gpus/services/https:main:https/proxy");
        for text in ["", "pollux", "a/b/c", "a/", "/b", "a/../b", "a/B", "a/b?x"] {
            assert!(text.parse::<OperatorName>().is_err(), "{text}");
        }
    }
}
