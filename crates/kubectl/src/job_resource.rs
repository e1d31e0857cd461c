use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pollux_job::{JobSpec, Work, check_variable};
use pollux_operator::{Flexibility, PodsPer, PolluxJob, PolluxJobSpec};

use crate::KubectlError;

/// The longest name of a resource that the API server makes one of.
const PREFIX_MAX: usize = 50;

/// What a job needs in pods, beside what every job has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSettings {
    /// What its containers are made from.
    pub image: String,
    /// A volume that all its pods can write to.
    pub checkpoint_claim: Option<String>,
    /// A name for those it belongs to.
    pub queue: Option<String>,
    /// The service account of its pods.
    pub service_account: Option<String>,
    /// What each of them holds.
    pub pods_per: PodsPer,
}

/// The resource that asks for a job. Without a name the API server makes one of that of its program.
pub fn job_resource(job: &JobSpec, pods: &PodSettings) -> Result<PolluxJob, KubectlError> {
    let checked = job.clone().named().check().and_then(|()| job.env.keys().try_for_each(|name| check_variable(name)));
    checked.map_err(|error| KubectlError::Job(error.to_string()))?;
    let unknown = |what: &str| Err(KubectlError::Job(what.to_owned()));
    if !job.secrets.is_empty() {
        return unknown("secrets: expected a Secret that the template of a PolluxJob names");
    }
    if !job.depends_on.is_empty() {
        return unknown("depends_on: expected no dependencies, which a PolluxJob does not have");
    }
    let requests = [("cpu", job.cpus.map(u64::from)), ("memory", job.memory)];
    let requests =
        requests.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), Quantity(amount?.to_string()))));
    let requests: std::collections::BTreeMap<String, Quantity> = requests.collect();
    let variable = |(name, value): (&String, &String)| EnvVar {
        name: name.clone(),
        value: Some(value.replace('$', "$$")),
        ..EnvVar::default()
    };
    let container = Container {
        name: "main".to_owned(),
        image: Some(pods.image.clone()),
        command: Some(job.command.clone()),
        working_dir: job.working_dir.to_str().filter(|folder| !folder.is_empty()).map(str::to_owned),
        env: (!job.env.is_empty()).then(|| job.env.iter().map(variable).collect()),
        resources: (!requests.is_empty())
            .then(|| ResourceRequirements { requests: Some(requests), ..ResourceRequirements::default() }),
        ..Container::default()
    };
    let pod = PodSpec {
        containers: vec![container],
        service_account_name: pods.service_account.clone(),
        ..PodSpec::default()
    };
    let spec = PolluxJobSpec {
        template: serde_json::json!({ "spec": pod }),
        replicas: Some(job.replicas),
        replicas_min: job.replicas_min,
        replicas_max: job.replicas_max,
        gpus_per_replica: job.gpus_per_replica,
        pods_per: pods.pods_per,
        gpu_types: job.gpu_types.clone(),
        application: job.application.clone(),
        flexibility: match job.flexibility {
            pollux_job::Flexibility::Elastic => Flexibility::Elastic,
            pollux_job::Flexibility::NonPreemptible => Flexibility::NonPreemptible,
            pollux_job::Flexibility::Rigid => Flexibility::Rigid,
        },
        batch_size: job.batch_size,
        priority: job.priority,
        queue: pods.queue.clone(),
        work: job.work.map(|work| match work {
            Work::Epochs(epochs) => pollux_operator::Work { epochs: Some(epochs), baseline_steps: None },
            Work::BaselineSteps(steps) => pollux_operator::Work { epochs: None, baseline_steps: Some(steps) },
        }),
        retries: job.retries,
        time_limit: job.time_limit,
        suspend: false,
        ttl_seconds_after_finished: None,
        checkpoint_claim: pods.checkpoint_claim.clone(),
    };
    let mut resource = PolluxJob::new(&job.name, spec);
    if job.name.is_empty() {
        resource.metadata.name = None;
        resource.metadata.generate_name = Some(prefix(job.command.first().map_or("", String::as_str)));
    }
    Ok(resource)
}

/// The beginning of a name, from that of a program.
fn prefix(program: &str) -> String {
    let name = program.rsplit('/').next().unwrap_or_default();
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().take(PREFIX_MAX).map(letter).collect();
    let name = name.trim_matches('-');
    format!("{}-", if name.is_empty() { "job" } else { name })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job() -> JobSpec {
        JobSpec {
            command: vec!["/usr/bin/Train_It".to_owned(), "--cost=$5".to_owned()],
            replicas_max: Some(8),
            cpus: Some(4),
            memory: Some(1 << 30),
            env: [("PRICE".to_owned(), "$(5)".to_owned())].into(),
            work: Some(Work::Epochs(3)),
            application: Some("resnet50".to_owned()),
            ..JobSpec::new("", 2)
        }
    }

    #[test]
    fn a_job_is_a_resource_with_the_same_fields() {
        let pods = PodSettings {
            image: "registry.example/resnet".to_owned(),
            checkpoint_claim: Some("disk".to_owned()),
            queue: Some("vision".to_owned()),
            service_account: None,
            pods_per: PodsPer::Replica,
        };
        let resource = serde_json::to_value(job_resource(&job(), &pods).unwrap()).unwrap();
        assert_eq!(resource["metadata"], json!({"generateName": "train-it-"}));
        let main = json!({
            "name": "main", "image": "registry.example/resnet", "command": ["/usr/bin/Train_It", "--cost=$5"],
            "env": [{"name": "PRICE", "value": "$$(5)"}],
            "resources": {"requests": {"cpu": "4", "memory": "1073741824"}},
        });
        assert_eq!(resource["spec"]["template"]["spec"]["containers"], json!([main]));
        let spec = &resource["spec"];
        assert_eq!([&spec["replicas"], &spec["replicasMax"], &spec["work"]["epochs"]], [2, 8, 3]);
        assert_eq!([&spec["checkpointClaim"], &spec["flexibility"], &spec["queue"]], ["disk", "Elastic", "vision"]);
        assert_eq!([&spec["podsPer"], &spec["application"]], ["Replica", "resnet50"]);
        let named = job_resource(&JobSpec { name: "resnet".to_owned(), ..job() }, &pods).unwrap();
        assert_eq!((named.metadata.name.as_deref(), named.metadata.generate_name), (Some("resnet"), None));
    }

    #[test]
    fn what_pods_cannot_have_is_refused() {
        let refused = |job: JobSpec| job_resource(&job, &PodSettings::default()).unwrap_err().to_string();
        let secret = JobSpec { secrets: [("KEY".to_owned(), pollux_job::Secret::new("x".to_owned()))].into(), ..job() };
        assert!(refused(secret).starts_with("secrets: expected "));
        assert!(refused(JobSpec { replicas_max: Some(1), ..job() }).contains("expected"));
        let rank = JobSpec { env: [("RANK".to_owned(), "1".to_owned())].into(), ..job() };
        assert!(refused(rank).contains("is set by Pollux for each replica"));
    }

    #[test]
    fn a_program_gives_its_job_a_name() {
        for (program, expected) in [("python3.11", "python3-11-"), ("/bin/__x", "x-"), ("", "job-"), ("é", "job-")] {
            assert_eq!(prefix(program), expected);
        }
    }
}
