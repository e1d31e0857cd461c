use std::fs;
use std::path::Path;
use std::str::FromStr;

use pollux_model::GpuTypeName;
use pollux_policy::NodeResources;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::table::shown;

const NODES_MAX: u32 = 100_000;
const NODE_GPUS_MAX: u32 = 1024;
const LIFETIME_MAX_S: u64 = 31_536_000;

/// The nodes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    groups: Vec<NodeGroup>,
}

/// Nodes that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeGroup {
    /// How many.
    pub count: u32,
    /// GPUs in each.
    pub gpus: u32,
    /// What they are called, where it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
    /// CPUs in each; not counted, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Bytes of memory in each, in a file also as text such as `256G`; not counted, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "memory")]
    pub memory: Option<u64>,
    /// How long each is there; for ever, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Lifetime>,
}

/// Nodes that are there for a time, as in allocations of Slurm; each is followed by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lifetime {
    /// Seconds from its start to its end.
    pub time_limit_s: u64,
    /// It is to be empty so many seconds before its end, and leaves as soon as it is.
    #[serde(default = "ten_minutes")]
    pub drain_before_s: u64,
    /// Seconds from when it is to be empty until the next one comes; 0 for one that was asked for in time.
    #[serde(default)]
    pub wait_s: u64,
    /// Whether the first nodes have been there for a while, each for another time, so that they do not end together.
    #[serde(default)]
    pub staggered: bool,
}

const fn ten_minutes() -> u64 {
    600
}

impl NodeGroup {
    /// Nodes of which only GPUs are known.
    pub const fn of_gpus(count: u32, gpus: u32) -> Self {
        Self { count, gpus, gpu_type: None, cpus: None, memory: None, lifetime: None }
    }

    /// What engine and agents call its type.
    pub(crate) fn type_name(&self) -> GpuTypeName {
        self.gpu_type.as_deref().map(GpuTypeName::nearest).unwrap_or_default()
    }

    pub(crate) const fn resources(&self) -> NodeResources {
        NodeResources { gpus: self.gpus, cpus: self.cpus, memory: self.memory }
    }
}

fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Bytes(u64),
        Text(String),
    }
    match Written::deserialize(deserializer)
        .map_err(|_| D::Error::custom("memory: expected bytes or a size such as 256G"))?
    {
        Written::Bytes(bytes) => Ok(Some(bytes)),
        Written::Text(text) => pollux_job::bytes(&text).map(Some).map_err(D::Error::custom),
    }
}

/// Why a cluster cannot be built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Neither a shape nor the name of a file.
    #[error("cluster {given}; expected NODESxGPUS such as 16x4, or a .toml file of node groups")]
    Shape {
        /// What was given, quoted.
        given: String,
    },
    /// The file could not be read.
    #[error("{file}: {source}")]
    Read {
        /// Path as given.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no list of node groups.
    #[error(
        "{file}:{line}: {reason}; expected [[group]] with count, gpus and perhaps gpu_type, cpus, memory and lifetime"
    )]
    Toml {
        /// Path as given.
        file: String,
        /// Counted from one.
        line: usize,
        /// What the reader stumbled over.
        reason: String,
    },
    /// A cluster without nodes.
    #[error("no node groups; expected one or more")]
    Empty,
    /// Too few or too many nodes.
    #[error("{nodes} nodes; expected 1 to {NODES_MAX} in all, and 1 or more per group")]
    Nodes {
        /// How many, in the group or in all.
        nodes: u64,
    },
    /// Nodes without GPUs, or with more than there are.
    #[error("{gpus} GPUs per node; expected 1 to {NODE_GPUS_MAX}")]
    NodeGpus {
        /// How many.
        gpus: u32,
    },
    /// Nodes that are not there long enough.
    #[error(
        "lifetime of {time_limit_s} s, emptied {drain_before_s} s before: expected 60 to {LIFETIME_MAX_S} s, and at most half of it"
    )]
    Lifetime {
        /// How long they are there.
        time_limit_s: u64,
        /// So long before that they are to be empty.
        drain_before_s: u64,
    },
    /// A node that is waited for longer than anybody does.
    #[error("wait_s {wait_s}: expected 0 to {LIFETIME_MAX_S}")]
    Wait {
        /// How long.
        wait_s: u64,
    },
    /// A GPU type that cannot be printed in a table.
    #[error("gpu_type {gpu_type}; expected 1 to 64 letters, digits, dots and dashes")]
    GpuType {
        /// What it said, quoted.
        gpu_type: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    group: Vec<NodeGroup>,
}

impl ClusterSpec {
    /// Refuses groups without nodes or GPUs, and clusters beyond all reason.
    pub fn new(groups: Vec<NodeGroup>) -> Result<Self, ClusterError> {
        if groups.is_empty() {
            return Err(ClusterError::Empty);
        }
        let nodes: u64 = groups.iter().map(|group| u64::from(group.count)).sum();
        if nodes > u64::from(NODES_MAX) || groups.iter().any(|group| group.count == 0) {
            return Err(ClusterError::Nodes { nodes: if nodes > u64::from(NODES_MAX) { nodes } else { 0 } });
        }
        for group in &groups {
            if !(1..=NODE_GPUS_MAX).contains(&group.gpus) {
                return Err(ClusterError::NodeGpus { gpus: group.gpus });
            }
            if let Some(Lifetime { time_limit_s, drain_before_s, wait_s, .. }) = group.lifetime {
                if !(60..=LIFETIME_MAX_S).contains(&time_limit_s) || drain_before_s > time_limit_s / 2 {
                    return Err(ClusterError::Lifetime { time_limit_s, drain_before_s });
                }
                if wait_s > LIFETIME_MAX_S {
                    return Err(ClusterError::Wait { wait_s });
                }
            }
            let plain = |name: &String| {
                let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
                (1..=64).contains(&name.len()) && name.chars().all(allowed)
            };
            if let Some(gpu_type) = group.gpu_type.as_ref().filter(|name| !plain(name)) {
                return Err(ClusterError::GpuType { gpu_type: shown(gpu_type) });
            }
        }
        Ok(Self { groups })
    }

    /// From an argument: a file if it ends in `.toml`, a shape such as `16x4` otherwise.
    pub fn read(argument: &str) -> Result<Self, ClusterError> {
        if Path::new(argument).extension().is_none_or(|extension| extension != "toml") {
            return argument.parse();
        }
        match fs::read_to_string(argument) {
            Ok(text) => Self::from_toml(argument, &text),
            Err(source) => Err(ClusterError::Read { file: argument.to_owned(), source }),
        }
    }

    /// From the text of a file of node groups; `file` is only for messages.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, ClusterError> {
        let parsed: ClusterFile = toml::from_str(text).map_err(|error| ClusterError::Toml {
            file: file.to_owned(),
            line: 1 + error.span().map_or(0, |span| text[..span.start].matches('\n').count()),
            reason: error.message().replace('\n', " "),
        })?;
        Self::new(parsed.group)
    }

    /// As given.
    pub fn groups(&self) -> &[NodeGroup] {
        &self.groups
    }

    /// The group of each node, group after group.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeGroup> {
        self.groups.iter().flat_map(|group| std::iter::repeat_n(group, group.count as usize))
    }

    /// Whether any node is there for a time only.
    pub(crate) fn has_lifetimes(&self) -> bool {
        self.groups.iter().any(|group| group.lifetime.is_some())
    }

    /// GPUs in all.
    pub fn gpus(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.count) * u64::from(group.gpus)).sum()
    }
}

impl FromStr for ClusterSpec {
    type Err = ClusterError;

    fn from_str(shape: &str) -> Result<Self, ClusterError> {
        let number = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let parsed = shape.split_once('x').and_then(|(nodes, gpus)| Some((number(nodes)?, number(gpus)?)));
        let (count, gpus) = parsed.ok_or_else(|| ClusterError::Shape { given: shown(shape) })?;
        Self::new(vec![NodeGroup::of_gpus(count, gpus)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error(argument: &str) -> String {
        ClusterSpec::read(argument).unwrap_err().to_string()
    }

    #[test]
    fn a_shape_is_nodes_by_gpus() {
        let cluster: ClusterSpec = "16x4".parse().unwrap();
        assert_eq!((cluster.nodes().map(|node| node.gpus).collect(), cluster.gpus()), (vec![4; 16], 64));
    }

    #[test]
    fn shapes_that_make_no_cluster_are_refused() {
        for given in ["", "16", "16x", "x4", "16x4x2", "-1x4", "+1x4", "16X4", "99999999999x4", "file.tom"] {
            let accepted = "NODESxGPUS such as 16x4, or a .toml file of node groups";
            assert_eq!(error(given), format!("cluster {given:?}; expected {accepted}"));
        }
        assert_eq!(error("0x4"), "0 nodes; expected 1 to 100000 in all, and 1 or more per group");
        assert_eq!(error("100001x4"), "100001 nodes; expected 1 to 100000 in all, and 1 or more per group");
        assert_eq!(error("4x0"), "0 GPUs per node; expected 1 to 1024");
        assert!(error("missing.toml").starts_with("missing.toml: "));
    }

    #[test]
    fn groups_follow_each_other() {
        let counted = "cpus = 96\nmemory = \"256G\"\n";
        let text =
            format!("[[group]]\ncount = 2\ngpus = 8\ngpu_type = \"a100\"\n{counted}[[group]]\ncount = 1\ngpus = 4\n");
        let cluster = ClusterSpec::from_toml("c.toml", &text).unwrap();
        assert_eq!(cluster.nodes().map(|node| node.gpus).collect::<Vec<_>>(), [8, 8, 4]);
        let counted = |group: &NodeGroup| (group.cpus, group.memory);
        assert_eq!(
            cluster.groups().iter().map(counted).collect::<Vec<_>>(),
            [(Some(96), Some(256 << 30)), (None, None)]
        );
        assert_eq!(cluster.groups()[0].gpu_type.as_deref(), Some("a100"));
    }

    #[test]
    fn files_that_make_no_cluster_are_refused_with_their_line() {
        let error = |text: &str| ClusterSpec::from_toml("c.toml", text).unwrap_err().to_string();
        let accepted = "expected [[group]] with count, gpus and perhaps gpu_type, cpus, memory and lifetime";
        assert_eq!(
            error("[[group]]\ncount = 2\ngpu = 8\n"),
            format!(
                "c.toml:3: unknown field `gpu`, expected one of `count`, `gpus`, `gpu_type`, `cpus`, `memory`, `lifetime`; {accepted}"
            )
        );
        assert_eq!(error("group = []"), "no node groups; expected one or more");
        let odd = "[[group]]\ncount = 1\ngpus = 1\nmemory = \"lots\"\n";
        assert_eq!(
            error(odd),
            format!("c.toml:4: \"lots\": expected bytes, or a size such as 512M, 16G or 16GiB; {accepted}")
        );
        let typed = "[[group]]\ncount = 1\ngpus = 1\ngpu_type = \"\"\n";
        assert_eq!(error(typed), "gpu_type \"\"; expected 1 to 64 letters, digits, dots and dashes");
    }

    #[test]
    fn nodes_may_be_there_for_a_time() {
        let read = |lifetime: &str| {
            ClusterSpec::from_toml("c.toml", &format!("[[group]]\ncount = 1\ngpus = 1\nlifetime = {lifetime}\n"))
        };
        let lifetime = Lifetime { time_limit_s: 7_200, drain_before_s: 600, wait_s: 0, staggered: false };
        assert_eq!(read("{ time_limit_s = 7200 }").unwrap().groups()[0].lifetime, Some(lifetime));
        let error = |lifetime: &str| read(lifetime).unwrap_err().to_string();
        assert_eq!(
            error("{ time_limit_s = 900 }"),
            "lifetime of 900 s, emptied 600 s before: expected 60 to 31536000 s, and at most half of it"
        );
        assert_eq!(error("{ time_limit_s = 7200, wait_s = 99999999 }"), "wait_s 99999999: expected 0 to 31536000");
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in "\\PC{0,40}|[0-9x]{0,12}|(\\[\\[group\\]\\]|count|gpus|=|[0-9\n ]){0,20}") {
            let _shape = text.parse::<ClusterSpec>();
            let _file = ClusterSpec::from_toml("c.toml", &text);
        }
    }
}
