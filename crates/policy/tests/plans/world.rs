//! A small cluster to plan for.

use pollux_model::{BatchLimits, Goodput, GpuType, GpuTypeName, LossCurve, NoiseStatistics, Parallelism, StepParams};
use pollux_policy::{
    Allocation, ClusterView, EndedJob, Flexibility, JobId, JobView, NodeId, NodeView, Oracle, Plan, Policy,
    SucceededJob, Timestamp, TypeProfile,
};

/// Nodes and jobs that own what a view borrows.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) now_s: u64,
    pub(crate) nodes: Vec<NodeView>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) succeeded: Vec<SucceededJob>,
    /// Names of kinds of GPU, where they make a difference.
    pub(crate) type_names: Vec<GpuTypeName>,
}

/// A job of a world; the fields are those of a view.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) age_s: u64,
    /// Seconds since it began to wait; for one that runs, before that.
    pub(crate) queued_s: u64,
    /// Seconds since it got GPUs.
    pub(crate) running_s: u64,
    pub(crate) executed_s: f64,
    pub(crate) restarts: u32,
    pub(crate) allocation: Allocation,
    pub(crate) requested: u32,
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) gpus_per_replica: u32,
    pub(crate) cpus: u32,
    pub(crate) memory: u64,
    pub(crate) gpu_types: Option<Vec<GpuType>>,
    pub(crate) flexibility: Flexibility,
    pub(crate) profiles: Vec<TypeProfile>,
    pub(crate) application: Option<&'static str>,
    /// Samples of ended jobs of its application, and of what those had declared.
    pub(crate) ended: Vec<EndedJob>,
    pub(crate) remaining_samples: Option<f64>,
    pub(crate) guest_of: Option<JobId>,
    pub(crate) batch_size: Option<u32>,
    pub(crate) priority: i32,
    pub(crate) owner: &'static str,
    pub(crate) baseline_steps: f64,
    pub(crate) epoch_steps: Option<f64>,
    pub(crate) samples_per_s: Option<f64>,
    pub(crate) loss: Option<LossCurve>,
    pub(crate) oracle: Option<Oracle>,
    /// Not in the view any more.
    pub(crate) gone: bool,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            age_s: 1_000,
            queued_s: 0,
            running_s: 1_000,
            executed_s: 0.0,
            restarts: 0,
            allocation: Allocation::NONE,
            requested: 1,
            min: 1,
            max: 64,
            gpus_per_replica: 1,
            cpus: 0,
            memory: 0,
            gpu_types: None,
            flexibility: Flexibility::Elastic,
            profiles: Vec::new(),
            application: None,
            ended: Vec::new(),
            remaining_samples: None,
            guest_of: None,
            batch_size: None,
            priority: 0,
            owner: "",
            baseline_steps: 0.0,
            epoch_steps: None,
            samples_per_s: None,
            loss: None,
            oracle: None,
            gone: false,
        }
    }
}

impl Job {
    /// Measured on up to `profiled` replicas; larger `sync_s` scales worse.
    pub(crate) fn measured(profiled: u32, sync_s: f64) -> Self {
        Self { profiles: vec![profile(GpuType::default(), profiled, sync_s)], ..Self::default() }
    }

    /// Running on the given replicas per node.
    pub(crate) fn running(self, places: &[(u32, u32)]) -> Self {
        let allocation = places.iter().map(|&(node, replicas)| (NodeId(node), replicas)).collect();
        Self { allocation, executed_s: 500.0, ..self }
    }
}

pub(crate) fn profile(gpu_type: GpuType, replicas_profiled: u32, sync_s: f64) -> TypeProfile {
    let params = StepParams {
        alpha_compute: 0.02,
        beta_compute: 0.001,
        alpha_internode: 2.0 * sync_s,
        beta_internode: 0.05 * sync_s,
        alpha_intranode: sync_s,
        beta_intranode: 0.02 * sync_s,
        gamma: 1.5,
    };
    let goodput = Goodput {
        throughput: Parallelism::DataParallel.model(params).expect("within bounds"),
        noise: NoiseStatistics::new(1.0, 20.0).expect("positive"),
        limits: BatchLimits::new(128, 8192, 16, 256).expect("ordered"),
    };
    TypeProfile { gpu_type, goodput, replicas_profiled, is_estimated: false }
}

/// The same on a kind of GPU that computes so many times as fast.
pub(crate) fn faster(profile: &TypeProfile, gpu_type: GpuType, times: f64) -> TypeProfile {
    let params = *profile.goodput.throughput.params();
    let alpha_compute = params.alpha_compute / times;
    let params = StepParams { alpha_compute, beta_compute: params.beta_compute / times, ..params };
    let throughput = Parallelism::DataParallel.model(params).expect("within bounds");
    TypeProfile { gpu_type, goodput: Goodput { throughput, ..profile.goodput }, ..*profile }
}

impl World {
    /// `nodes` nodes of `gpus` GPUs.
    pub(crate) fn new(nodes: u32, gpus: u32, jobs: Vec<Job>) -> Self {
        let node = |id| NodeView {
            id: NodeId(id),
            gpus,
            gpu_type: GpuType::default(),
            cpus: None,
            memory: None,
            schedulable: true,
        };
        Self {
            now_s: 100_000,
            nodes: (0..nodes).map(node).collect(),
            jobs,
            succeeded: Vec::new(),
            type_names: Vec::new(),
        }
    }

    pub(crate) fn with_view<T>(&self, run: impl FnOnce(Timestamp, &ClusterView<'_>) -> T) -> T {
        let now = Timestamp(self.now_s * 1000);
        let jobs: Vec<JobView<'_>> = (0..)
            .zip(&self.jobs)
            .filter(|(_, job)| !job.gone)
            .map(|(id, job)| JobView {
                id: JobId(id),
                eligible_since: Timestamp((self.now_s - job.age_s) * 1000),
                queued_since: Timestamp((self.now_s - job.queued_s) * 1000),
                running_since: (!job.allocation.is_empty()).then_some(Timestamp((self.now_s - job.running_s) * 1000)),
                attained_gpu_s: job.executed_s * f64::from(job.gpus_per_replica * job.allocation.replicas()),
                executed_s: job.executed_s,
                restarts: job.restarts,
                restart_cost_s: 30.0,
                allocation: &job.allocation,
                replicas_requested: job.requested,
                replicas_min: job.min,
                replicas_max: job.max,
                gpus_per_replica: job.gpus_per_replica,
                cpus: job.cpus,
                memory: job.memory,
                gpu_types: job.gpu_types.as_deref(),
                flexibility: job.flexibility,
                guest_of: job.guest_of,
                batch_size: job.batch_size,
                owner: job.owner,
                priority: job.priority,
                application: job.application,
                profiles: &job.profiles,
                application_profiles: &[],
                application_ended: &job.ended,
                remaining_samples: job.remaining_samples,
                baseline_steps: job.baseline_steps,
                epoch_steps: job.epoch_steps,
                samples_per_s: job.samples_per_s,
                loss: job.loss,
                oracle: job.oracle.as_ref(),
            })
            .collect();
        run(
            now,
            &ClusterView { nodes: &self.nodes, jobs: &jobs, succeeded: &self.succeeded, gpu_types: &self.type_names },
        )
    }

    /// A checked plan.
    pub(crate) fn plan(&self, policy: &mut dyn Policy) -> Plan {
        self.with_view(|now, view| {
            let plan = policy.plan(now, view);
            plan.check(view, policy.rules()).expect("a policy keeps its rules");
            plan
        })
    }

    /// Makes it so, and lets some time pass. A guest whose host went has its GPUs for itself.
    pub(crate) fn carry_out(&mut self, plan: &Plan, seconds: u64) {
        self.now_s += seconds;
        for (id, job) in (0..).map(JobId).zip(&mut self.jobs) {
            job.age_s += seconds;
            if let Some(assignment) = plan.assignments.iter().find(|assignment| assignment.job == id) {
                job.allocation = assignment.allocation.clone();
                job.guest_of = assignment.guest_of.filter(|_| !assignment.allocation.is_empty());
            }
            if !job.allocation.is_empty() {
                job.executed_s += seconds as f64;
            }
        }
    }

    /// A job ends.
    pub(crate) fn end(&mut self, id: u64) {
        self.jobs[id as usize].gone = true;
        for job in self.jobs.iter_mut().filter(|job| job.guest_of == Some(JobId(id))) {
            job.guest_of = None;
        }
    }

    /// Plans and carries the plan out for so long; returns what every job has, such as `0*2@1` on node 0 as a guest of
    /// job 1.
    pub(crate) fn round(&mut self, policy: &mut dyn Policy, seconds: u64) -> String {
        let plan = self.plan(policy);
        self.carry_out(&plan, seconds);
        let show = |assignment: &pollux_policy::Assignment| {
            let places = assignment.allocation.iter().map(|(node, replicas)| format!("{}*{replicas}", node.0));
            let places = places.collect::<Vec<_>>().join("+");
            let host = assignment.guest_of.map_or_else(String::new, |host| format!("@{}", host.0));
            if places.is_empty() { "-".to_owned() } else { places + &host }
        };
        plan.assignments.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    /// Replicas of each job in a checked plan.
    pub(crate) fn replicas(&self, policy: &mut dyn Policy) -> Vec<u32> {
        self.plan(policy).assignments.iter().map(|assignment| assignment.allocation.replicas()).collect()
    }
}
