use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::{Dependency, Flexibility, PodsPer, Secret, SpecError, Work};

/// Most replicas of a job that names no limit, unless it begins with more.
pub const REPLICAS_MAX_DEFAULT: u32 = 64;

/// Longest name of a job, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// More replicas than any job has had; above it a number is a mistake.
const REPLICAS_LIMIT: u32 = 65_536;
/// More GPUs than any node has; above it a number is a mistake.
const GPUS_PER_REPLICA_LIMIT: u32 = 1_024;
/// A job that fails more often than this is not helped by another attempt.
const RETRIES_LIMIT: u32 = 1_000;
const GPU_TYPES_LIMIT: usize = 64;
const GPU_TYPE_BYTES_MAX: usize = 64;
const DEPENDENCIES_LIMIT: usize = 1_024;
/// Ten years.
const TIME_LIMIT_MAX_S: u64 = 10 * 366 * 86_400;

/// What a user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields, remote = "Self"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobSpec {
    /// For people; need not be unique. The name of the script or program, if left out.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "String::is_empty"))]
    #[cfg_attr(feature = "openapi", schema(max_length = 128, pattern = r"^([^./\\][^/\\]*)?$"))]
    pub name: String,
    /// Who submitted it. The server knows; whoever submits leaves it out.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "String::is_empty"))]
    pub owner: String,
    /// Program and arguments, the same for every replica.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    #[cfg_attr(feature = "openapi", schema(min_items = 1, required))]
    pub command: Vec<String>,
    /// Where the program starts; absolute.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_nowhere"))]
    #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^/", required))]
    pub working_dir: PathBuf,
    /// Variables of the program, besides those of the node.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "BTreeMap::is_empty"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::variables::read"))]
    pub env: BTreeMap<String, String>,
    /// Variables of the program whose values are never shown again.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "BTreeMap::is_empty"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::variables::read"))]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, String>))]
    pub secrets: BTreeMap<String, Secret>,
    /// Replicas it begins with, where so many fit, or `replicas_min`, if left out; a rigid job has exactly as many.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 65536))]
    pub replicas: u32,
    /// Fewest replicas it can run with.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 65536))]
    pub replicas_min: u32,
    /// Maximum number of replicas; 64, or as many as it begins with, if left out.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 65536))]
    pub replicas_max: Option<u32>,
    /// GPUs of one replica, always on one node. A program that starts a process for each GPU itself has one replica.
    #[cfg_attr(feature = "serde", serde(alias = "gpus"))]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1024))]
    pub gpus_per_replica: u32,
    /// CPUs of one replica; not counted, if left out.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub cpus: Option<u32>,
    /// Memory of one replica in bytes, or as text such as `16G`; not counted, if left out.
    #[cfg_attr(
        feature = "serde",
        serde(skip_serializing_if = "Option::is_none", deserialize_with = "crate::amount::written::bytes")
    )]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub memory: Option<u64>,
    /// Types of GPU it may run on, by name; any, if left out.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub gpu_types: Vec<String>,
    /// How it may be moved and resized.
    pub flexibility: Flexibility,
    /// What its pods hold. Only the operator says it: elsewhere there are no pods.
    #[cfg_attr(feature = "serde", serde(skip))]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub pods_per: PodsPer,
    /// What it trains, by any name: jobs of one application train alike, so that one is taken to do what others did.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub application: Option<String>,
    /// Total batch that its user fixed, for policies that leave it to users; the baseline where nothing is said.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub batch_size: Option<u32>,
    /// Higher goes first. A job below 0 is opportunistic: it uses what others leave.
    pub priority: i32,
    /// How long it is to train, if that is known: it makes predictions possible.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub work: Option<Work>,
    /// Failures after which it is tried again.
    #[cfg_attr(feature = "openapi", schema(maximum = 1000))]
    pub retries: u32,
    /// Seconds that it may hold GPUs, or a text such as `8h`; then it is stopped.
    #[cfg_attr(
        feature = "serde",
        serde(skip_serializing_if = "Option::is_none", deserialize_with = "crate::amount::written::seconds")
    )]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub time_limit: Option<u64>,
    /// Jobs that have to end before it starts.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub depends_on: Vec<Dependency>,
}

#[cfg(feature = "serde")]
fn is_nowhere(folder: &std::path::Path) -> bool {
    folder.as_os_str().is_empty()
}

impl Default for JobSpec {
    /// An elastic job of one replica with one GPU and three retries, with nothing to run yet.
    fn default() -> Self {
        Self {
            name: String::new(),
            owner: String::new(),
            command: Vec::new(),
            working_dir: PathBuf::new(),
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            replicas: 1,
            replicas_min: 1,
            replicas_max: None,
            gpus_per_replica: 1,
            cpus: None,
            memory: None,
            gpu_types: Vec::new(),
            flexibility: Flexibility::Elastic,
            pods_per: PodsPer::Replica,
            application: None,
            batch_size: None,
            priority: 0,
            work: None,
            retries: 3,
            time_limit: None,
            depends_on: Vec::new(),
        }
    }
}

impl JobSpec {
    /// A job of that name that begins with so many replicas.
    pub fn new(name: &str, replicas: u32) -> Self {
        Self { name: name.to_owned(), replicas, ..Self::default() }
    }

    /// What a field is called today, of whatever version its name is; nothing if there is none.
    #[cfg(feature = "serde")]
    pub fn field(name: &str) -> Option<&str> {
        let renamed = crate::reading::RENAMED.iter().find(|(before, _)| *before == name).map(|&(_, today)| today);
        renamed.or_else(|| crate::fields::of::<Self>().contains(&name).then_some(name))
    }

    /// Fewest replicas a plan may give it.
    pub fn fewest(&self) -> u32 {
        match self.flexibility {
            Flexibility::Rigid => self.replicas,
            Flexibility::Elastic | Flexibility::NonPreemptible => self.replicas_min,
        }
    }

    /// Most replicas a plan may give it.
    pub fn most(&self) -> u32 {
        match self.flexibility {
            Flexibility::Rigid => self.replicas,
            Flexibility::Elastic | Flexibility::NonPreemptible => self.replicas_limit(),
        }
    }

    /// Maximum number of replicas, as its user or the default says.
    pub fn replicas_limit(&self) -> u32 {
        self.replicas_max.unwrap_or_else(|| self.replicas.max(REPLICAS_MAX_DEFAULT))
    }

    /// Refuses what no cluster could ever run.
    pub fn check(&self) -> Result<(), SpecError> {
        let written = |letter: char| !letter.is_control() && !matches!(letter, '/' | '\\');
        let bytes = self.name.len();
        if !(1..=NAME_BYTES_MAX).contains(&bytes) || self.name.starts_with('.') || !self.name.chars().all(written) {
            return Err(SpecError::Name { bytes, bytes_max: NAME_BYTES_MAX });
        }
        self.check_resources()?;
        if let Some(name) = &self.application
            && (!(1..=NAME_BYTES_MAX).contains(&name.len()) || name.chars().any(char::is_control))
        {
            return Err(SpecError::Application { bytes: name.len(), bytes_max: NAME_BYTES_MAX });
        }
        if self.batch_size == Some(0) {
            return Err(SpecError::NoBatch);
        }
        if self.retries > RETRIES_LIMIT {
            return Err(SpecError::Retries { retries: self.retries, limit: RETRIES_LIMIT });
        }
        if let Some(seconds) = self.time_limit.filter(|limit| !(1..=TIME_LIMIT_MAX_S).contains(limit)) {
            return Err(SpecError::TimeLimit { seconds, limit: TIME_LIMIT_MAX_S });
        }
        let count = self.depends_on.len();
        if count > DEPENDENCIES_LIMIT {
            return Err(SpecError::Dependencies { count, limit: DEPENDENCIES_LIMIT });
        }
        match self.work {
            Some(Work::Epochs(0) | Work::BaselineSteps(0)) => Err(SpecError::NoWork),
            Some(Work::Epochs(_) | Work::BaselineSteps(_)) | None => Ok(()),
        }
    }

    fn check_resources(&self) -> Result<(), SpecError> {
        let (min, replicas, max) = (self.replicas_min, self.replicas, self.replicas_limit());
        if min == 0 || min > replicas || replicas > max || max > REPLICAS_LIMIT {
            return Err(SpecError::Replicas { min, replicas, max, limit: REPLICAS_LIMIT });
        }
        let gpus = self.gpus_per_replica;
        if !(1..=GPUS_PER_REPLICA_LIMIT).contains(&gpus) {
            return Err(SpecError::GpusPerReplica { gpus, limit: GPUS_PER_REPLICA_LIMIT });
        }
        if self.cpus == Some(0) {
            return Err(SpecError::NoAmount { resource: "cpus".to_owned() });
        }
        if self.memory == Some(0) {
            return Err(SpecError::NoAmount { resource: "memory".to_owned() });
        }
        let is_name =
            |name: &String| (1..=GPU_TYPE_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
        if self.gpu_types.len() > GPU_TYPES_LIMIT || !self.gpu_types.iter().all(is_name) {
            return Err(SpecError::GpuTypes { limit: GPU_TYPES_LIMIT, bytes_max: GPU_TYPE_BYTES_MAX });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_cluster_could_run_is_refused() {
        let good = || JobSpec::new("a", 1);
        assert_eq!(good().check(), Ok(()));
        for (spec, message) in [
            (
                JobSpec { application: Some(String::new()), ..good() },
                "application of 0 bytes: expected 1 to 128 bytes, without control characters",
            ),
            (JobSpec { batch_size: Some(0), ..good() }, "batch_size 0: expected 1 or more samples, or no batch"),
            (JobSpec { replicas_min: 2, ..good() }, "replicas_min 2, replicas 1, replicas_max 64: expected 1 <="),
            (JobSpec { gpus_per_replica: 0, ..good() }, "gpus_per_replica 0: expected 1 to 1024"),
            (JobSpec { cpus: Some(0), ..good() }, "cpus 0: expected 1 or more, or no cpus at all"),
            (JobSpec { memory: Some(0), ..good() }, "memory 0: expected 1 or more, or no memory at all"),
            (JobSpec { gpu_types: vec![String::new()], ..good() }, "gpu_types: expected up to 64 names"),
            (JobSpec { retries: 1_001, ..good() }, "retries 1001: expected 0 to 1000"),
            (JobSpec { time_limit: Some(0), ..good() }, "time_limit 0 s: expected 1 s to"),
            (JobSpec { work: Some(Work::Epochs(0)), ..good() }, "declared work of 0: expected 1 or more epochs"),
            (JobSpec { name: ".a".to_owned(), ..good() }, "a name of 2 bytes: expected 1 to 128"),
        ] {
            let refused = spec.check().unwrap_err().to_string();
            assert!(refused.starts_with(message), "{refused}");
        }
    }

    #[test]
    fn a_job_without_a_limit_may_have_64_replicas_or_what_it_begins_with() {
        assert_eq!(JobSpec::new("a", 1).most(), 64);
        assert_eq!(JobSpec::new("a", 100).most(), 100);
        assert_eq!(JobSpec { replicas_max: Some(4), ..JobSpec::new("a", 1) }.most(), 4);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_spec_is_read_as_documented_and_typos_are_refused() {
        let text = r#"{"command": ["python", "train.py"], "working_dir": "/srv", "env": {"SEED": "1"},
            "gpus_per_replica": 4, "memory": "16G", "time_limit": "1h30m", "depends_on": [3, "4:end"]}"#;
        let spec: JobSpec = serde_json::from_str(text).unwrap();
        assert_eq!((spec.memory, spec.time_limit, spec.gpus_per_replica), (Some(16 << 30), Some(5_400), 4));
        let written = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<JobSpec>(&written).unwrap(), spec);
        for (text, message) in [
            (r#"{"replica": 1}"#, "unknown field `replica`"),
            (r#"{"time_limit": "soon"}"#, "\"soon\": expected seconds, or a duration such as 90s"),
            (r#"{"memory": true}"#, "expected bytes, or a size such as 512M"),
        ] {
            let refused = serde_json::from_str::<JobSpec>(text).unwrap_err().to_string();
            assert!(refused.contains(message), "{refused}");
        }
    }
}
