// Written by `npm run types` from the server's OpenAPI document. A test compares the two.

/** How a job has to end before the one that waits for it may start. */
export type After = "success" | "end";

/** Something that became of a queue. */
export type AllocationEvent = {
  /** When. */
  at_ms: number;
  /** What, as a sentence. */
  text: string;
};

/** Response to `GET /v1/allocation-queues/{name}/output`: what an allocation has printed. */
export type AllocationOutput = {
  /** Which Slurm job; nothing if there was none yet. */
  job?: number | null;
  /** The end of it. */
  text: string;
};

/** A queue of allocations, and what is known of it. */
export type AllocationQueue = {
  /** What it has, the oldest first. */
  allocations: Array<SlurmAllocation>;
  /** GPUs or slots of each, as far as that is known. */
  gpus_per_node: number;
  /** What became of it lately, the oldest first. */
  log: Array<AllocationEvent>;
  /** Nodes of all its allocations. */
  nodes: number;
  /** Those that have joined. */
  nodes_joined: number;
  /** What was asked for. */
  request: AllocationQueueSpec;
  /** Why it asks for what it asks for, or for nothing: a sentence. */
  standing: string;
  /** `active`, `paused`, `stopped` after failures, or `removed`. */
  state: string;
};

/** Response to `GET /v1/allocation-queues`. */
export type AllocationQueueList = {
  /** In the order in which they were added. */
  queues: Array<AllocationQueue>;
};

/** What Slurm is asked for, again and again: body of `POST /v1/allocation-queues` and `POST /v1/allocation-rehearsals`, and what the scheduler keeps. */
export type AllocationQueueSpec = {
  /** Most allocations that wait at once. */
  backlog?: number;
  /** How many seconds before its end a node is emptied. */
  drain_before_s?: number;
  /** A folder that every node sees, for scripts, the token and what allocations print. */
  folder?: string | null;
  /** What the GPUs of its nodes are called; as the driver calls them, if left out. */
  gpu_type?: string | null;
  /** A node without work for so many seconds is given back. */
  idle_timeout_s?: number;
  /** Most nodes, those that are waited for included; as many as jobs are worth, if left out. */
  max_nodes?: number | null;
  /** What it is called; 1 to 40 letters, digits, `-` or `_`. */
  name: string;
  /** Nodes of each allocation. */
  nodes_per_alloc?: number;
  /** What else `sbatch` is told. */
  sbatch?: Array<string>;
  /** Slots of each node, where it has no GPUs. */
  slots?: number | null;
  /** How long each allocation lasts, in seconds. */
  time_limit_s: number;
};

/** Response to `POST /v1/allocation-rehearsals`: what `sbatch` would say. */
export type AllocationRehearsal = {
  /** The command, as it would be called. */
  command: Array<string>;
  /** Whether it would take the allocation. */
  is_accepted: boolean;
  /** What it says. */
  said: string;
};

/** One replica of a group. */
export type AssignedReplica = {
  /** The type of its GPUs. */
  gpu_type?: string;
  /** Its place among the replicas of that node. */
  local_rank: number;
  /** Replicas of the group on that node. */
  local_world_size: number;
  /** The node it runs on. */
  node: string;
  /** Its place in the group. */
  rank: number;
  /** Its number, which it keeps for life. */
  replica: number;
};

/** Response to `GET /v1/jobs/{id}/assignment`: who belongs to the newest group of a job, and where it meets. */
export type Assignment = {
  /** Who chooses the batch. */
  batch?: Record<string, unknown>;
  /** Whose word it is: of several schedulers that follow each other each has a larger one. A scheduler that knew no such thing leaves it out. */
  epoch?: number | null;
  /** Number of the group; every change gives a larger one. */
  generation: number;
  /** What only workers of this job are told, so that they know each other. It stays the same. */
  key?: string | null;
  /** A host for programs that cannot tell where they wait: `MASTER_ADDR` of those that are started for this group. */
  master_address: string;
  /** A port for such programs: `MASTER_PORT`. */
  master_port: number;
  rendezvous?: Endpoint | null;
  /** The group, ordered by rank. Replicas of the group before come first, in their old order. */
  replicas: Array<AssignedReplica>;
  /** Whether another job runs on GPUs of the group: its steps then tell nothing of what those GPUs could do. */
  shares_gpus?: boolean;
  /** Whether the group trains. */
  state: AssignmentState;
};

/** Whether a group trains. */
export type AssignmentState = "stop" | "run";

/** The cluster left as it is, and with all changes. */
export type BeforeAfter_f64 = {
  after: number;
  before: number;
};

/** The cluster left as it is, and with all changes. */
export type BeforeAfter_Option_f64 = {
  after: null | number;
  before: null | number;
};

/** The cluster left as it is, and with all changes. */
export type BeforeAfter_String = {
  after: string;
  before: string;
};

/** Something that could be done now. */
export type Change = {
  /** Submit a job. */
  submit: HypotheticalJob;
} | {
  /** Add nodes that are alike. */
  add_nodes: {
    /** How many. */
    count: number;
    /** Their kind; that of the cluster's first node, if left out. */
    gpu_type?: string | null;
    /** GPUs of each. */
    gpus: number;
  };
} | {
  /** Drain a node. */
  drain: {
    /** Its name. */
    node: string;
  };
} | {
  /** Let another policy decide. */
  policy: {
    /** Its name; it has its default settings. */
    name: string;
  };
} | {
  /** End a job. */
  cancel: {
    /** Which. */
    job: number;
  };
} | {
  /** Set a job aside. */
  pause: {
    /** Which. */
    job: number;
  };
} | {
  /** Let a paused job go on. */
  resume: {
    /** Which. */
    job: number;
  };
};

/** Response to `GET /v1/cluster/series`: the cluster over time. All lists are of one length, the oldest moment first. */
export type ClusterSeries = {
  /** The moments. */
  at_ms: Array<number>;
  /** What a sample is worth, on average over GPUs. */
  efficiency: Array<number | null>;
  /** Samples per second times what each is worth, of all jobs. */
  goodput: Array<number>;
  /** GPUs of all nodes that are up. */
  gpus: Array<number>;
  /** GPUs that replicas hold. */
  gpus_held: Array<number>;
  /** Jobs that wait for GPUs. */
  queued: Array<number>;
  /** Jobs that have some. */
  running: Array<number>;
  /** Seconds from one moment to the next, while the server ran. */
  step_s: number;
  /** The same on average over jobs. */
  unfairness_average: Array<number | null>;
  /** Finish-time fairness of the job that is treated worst: 1 is fair, more is later. */
  unfairness_worst: Array<number | null>;
};

/** Response to `GET /v1/cluster`. */
export type ClusterStatus = {
  /** Sum over jobs that train and tell. */
  goodput: number;
  /** GPUs of all nodes that are up. */
  gpus: number;
  /** GPUs that replicas hold, those on their way out included. */
  gpus_held: number;
  /** Whether nothing can be written at the moment, so that nothing new is done. */
  is_degraded: boolean;
  /** Live jobs by phase. */
  jobs: Record<string, number>;
  /** Number of the last event; 0 before the first. */
  last_event: number;
  /** When the last plan was made. */
  last_round_ms?: number | null;
  /** When the next plan is made. */
  next_round_ms?: number | null;
  /** By the cluster's clock. */
  now_ms: number;
  /** Who gets what. */
  policy: string;
  /** Of the server. */
  version: string;
};

/** When a job would be complete, or why that is not known. */
export type Completion = {
  /** Seconds from now. */
  completion_s?: number | null;
  /** Why there is no such time. */
  why?: string | null;
};

/** A job that has to end before another may start. Written `12`, or `12:end`. */
export type Dependency = {
  /** How it has to end. */
  after: After;
  /** The job that goes first. */
  job: JobId;
};

/** A place to connect to. */
export type Endpoint = {
  /** Host. */
  address: string;
  /** Port. */
  port: number;
};

/** Something that happened. */
export type Event = {
  /** When. */
  at_ms: number;
  /** What, as data: the fields differ by kind. */
  detail: Record<string, unknown>;
  /** The job that it happened to. */
  job?: number | null;
  /** What, as one word. */
  kind: string;
  /** Its number; later ones are larger. */
  sequence: number;
  /** What, as a sentence. */
  text: string;
};

/** Response to `GET /v1/events`, the oldest first. */
export type EventList = {
  /** The events. */
  events: Array<Event>;
  /** What to give as `after` to read on. */
  next_after: number;
};

/** Response to `GET /v1/jobs/{id}/explanation`: why a job has what it has, and when that may change. */
export type Explanation = {
  /** What keeps it from having more, as one word. */
  binding?: string | null;
  /** GPUs that a fair share of the cluster would give it. */
  fair_share?: number | null;
  /** GPUs of each replica. */
  gpus_per_replica?: number;
  /** Which job. */
  id: number;
  /** Its name. */
  name: string;
  /** When the next plan is made. */
  next_round_ms?: number | null;
  /** Goodput with one GPU fewer against now, minus 1. */
  one_fewer?: number | null;
  /** Goodput with one more GPU against now, minus 1. */
  one_more?: number | null;
  payer?: Payer | null;
  /** Where it is in its life. */
  phase: Phase;
  /** Replicas of its group now. */
  replicas: number;
  /** All of the below for people, a sentence each. */
  sentences: Array<string>;
  /** What it is expected to do on other numbers of GPUs, where its agent has told enough. */
  sizes: Array<SizeOutlook>;
  /** What it is expected to do on each type of GPU that it may use, in a cluster of several. */
  types?: Array<TypeOutlook>;
  /** What it waits for, as one word; nothing if it trains as planned, or has ended. */
  wait?: string | null;
};

/** Body of every answer that is not a success. */
export type Failure = {
  /** What went wrong. */
  error: FailureDetail;
};

/** What went wrong. */
export type FailureDetail = {
  /** One word for programs, such as `unknown_job`. */
  code: string;
  /** One line for people: what was read, and what would be accepted. */
  message: string;
};

/** How a job may be moved and resized. */
export type Flexibility = "elastic" | "non_preemptible" | "rigid";

/** Whether new work is taken. */
export type Health = {
  /** `ok`, or `degraded` while nothing can be written. */
  status: string;
};

/** A node that was seen and cannot be used yet. */
export type HeldBackNode = {
  /** Their kind. */
  gpu_type: string;
  /** Its GPUs. */
  gpus: number;
  /** Its name. */
  name: string;
  /** What it waits for, in a sentence. */
  reason: string;
};

/** A job that could be submitted. What is left out is as the job it trains like has it, or as a submission has it. */
export type HypotheticalJob = {
  /** Total batch that its user fixes, for policies that leave it to users. */
  batch_size?: number | null;
  /** CPUs of one replica. */
  cpus?: number | null;
  /** Live jobs that have to end before it starts. Those of the job it trains like do not count. */
  depends_on?: Array<Dependency>;
  flexibility?: Flexibility | null;
  /** Types of GPU it may run on, by name; an empty list allows any. */
  gpu_types?: Array<string> | null;
  /** GPUs of one replica. */
  gpus_per_replica?: number | null;
  /** Memory of one replica in bytes, or as text such as `16G`. */
  memory?: number | null;
  /** For people; what it trains like, if left out. */
  name?: string | null;
  /** Higher goes first, where a policy knows priorities. */
  priority?: number | null;
  /** Replicas to begin with. */
  replicas?: number | null;
  /** Maximum number of replicas. */
  replicas_max?: number | null;
  /** Fewest replicas it can run with. */
  replicas_min?: number | null;
  /** Seconds that it may hold GPUs, or a text such as `8h`. */
  time_limit?: number | null;
  /** What its training is known from. */
  trains_like: TrainsLike;
  work?: Work | null;
};

/** Response to `POST /v1/node-tokens`: the only time that the token is shown. */
export type IssuedNodeToken = {
  /** Until when. */
  expires_ms: number;
  /** Lets machines join, and nothing else. Behind a dot there is the fingerprint of the server's certificate, if it has one. */
  token: string;
};

/** Response to `POST /v1/tokens`: the only time that the token is shown. */
export type IssuedToken = {
  /** From when on it opens nothing, in milliseconds since 1970, if it ends. */
  expires_ms?: number | null;
  /** The user whom it is for. */
  label: string;
  /** What the user may do. */
  role: Role;
  /** Opens what the role may do. */
  token: string;
};

/** A job, as in a listing. */
export type Job = {
  /** GPU-seconds held. */
  attained_gpu_s: number;
  /** Total batch now. */
  batch_size?: number | null;
  /** What a sample is worth at this batch, against one of the baseline batch. */
  efficiency?: number | null;
  /** When it ended. */
  ended_ms?: number | null;
  /** Epochs finished. */
  epochs?: number | null;
  /** Why it was given up. */
  failure?: string | null;
  /** Samples per second times efficiency. */
  goodput?: number | null;
  /** GPUs of each replica. */
  gpus_per_replica?: number;
  /** Its number. */
  id: number;
  /** Factor on the user's learning rate now. */
  learning_rate_factor?: number | null;
  /** For people. */
  name: string;
  /** Nodes they are on. */
  nodes: number;
  /** Who submitted it; empty if that is not known. */
  owner?: string;
  /** Where it is in its life. */
  phase: Phase;
  /** When that phase began, in milliseconds since 1970; so all moments. */
  phase_since_ms: number;
  /** Part of the declared work that is done, from 0 to 1. */
  progress?: number | null;
  /** Seconds waited for GPUs. */
  queued_s: number;
  /** Seconds until the declared work is done, if nothing changes. */
  remaining_s?: number | null;
  /** Replicas of its group now. */
  replicas: number;
  /** Groups launched or resized after the first. */
  restarts: number;
  /** Retries after failures. */
  retries: number;
  /** Samples per second lately. */
  samples_per_s?: number | null;
  /** Its goodput against that on an equal share of the cluster, as its model tells. */
  speedup?: number | null;
  /** When its first group was launched. */
  started_ms?: number | null;
  /** When it was submitted. */
  submitted_ms: number;
  /** Finish-time fairness: the time it takes in all, if nothing changes, against the time alone on an equal share. */
  unfairness?: number | null;
};

/** What one job has saved. */
export type JobCheckpoints = {
  /** Seconds since the job ended, or wrote there last if that was later. */
  age_s: number;
  /** Room that it takes. */
  bytes: number;
  /** Which job. */
  job: number;
};

/** Response to `GET /v1/jobs/{id}`. */
export type JobDetail = Job & {
  /** Micro-batches before the one that ends a step. */
  accumulation_steps?: number | null;
  /** Where it keeps its checkpoints. */
  checkpoint_dir: string;
  /** Number of its newest group, as workers know it; 0 before the first. */
  generation: number;
  /** Its newest group, ordered by rank. */
  group: Array<AssignedReplica>;
  /** Whether it runs without a word, so that it is left alone. */
  is_silent: boolean;
  /** Samples of one micro-batch on one replica. */
  local_batch?: number | null;
  /** Noise scale of its gradients: at about this batch, twice the samples are worth half as much. */
  noise_scale?: number | null;
  /** Replicas that work or worked for it and have logs, the oldest first. */
  replicas_logged: Array<number>;
  /** Most replicas it was measured on. */
  replicas_profiled?: number | null;
  /** When its agent spoke last. */
  reported_ms?: number | null;
  /** Seconds that a change of its group costs, as measured on itself. */
  restart_cost_s?: number | null;
  /** What its user asked for; the values of secrets are hidden. */
  spec: JobSpec;
};

/** When a job would be complete. */
export type JobForecast = {
  /** If everything is changed. */
  after: Completion;
  /** If nothing is changed. */
  before: Completion;
  /** GPUs of each replica. */
  gpus_per_replica?: number;
  /** Its number; nothing for one that does not exist. */
  id?: number | null;
  /** Its name. */
  name: string;
  phase?: Phase | null;
  /** Replicas of its group now. */
  replicas: number;
};

/** A job, numbered in the order of submission. */
export type JobId = number;

/** Response to `GET /v1/jobs`: live jobs first, in order of submission, then ended ones, the newest first. One that ends while pages are read may be on two of them, and is left out of none. */
export type JobList = {
  /** The jobs. */
  jobs: Array<Job>;
  /** What to give as `after_live` to read on; nothing if every live job was told. */
  next_after_live?: number | null;
  /** What to give as `before` to read on, once every live job was told; nothing at the end. */
  next_before?: number | null;
};

/** Response to `GET /v1/jobs/{id}/series`: a job over its life. All lists are of one length, the oldest moment first. */
export type JobSeries = {
  /** The moments at which something was told or changed. */
  at_ms: Array<number>;
  /** Total batch. */
  batch_size: Array<number | null>;
  /** What a sample is worth at that batch, against one of the baseline batch. */
  efficiency: Array<number | null>;
  /** Samples per second times efficiency. */
  goodput: Array<number | null>;
  /** Factor on the user's learning rate. */
  learning_rate_factor: Array<number | null>;
  /** Noise scale of its gradients. */
  noise_scale: Array<number | null>;
  /** Replicas of its group. */
  replicas: Array<number>;
  /** Samples per second. */
  samples_per_s: Array<number | null>;
};

/** What a user asks for. */
export type JobSpec = {
  /** What it trains, by any name: jobs of one application train alike, so that one is taken to do what others did. */
  application?: string | null;
  /** Total batch that its user fixed, for policies that leave it to users; the baseline where nothing is said. */
  batch_size?: number | null;
  /** Program and arguments, the same for every replica. */
  command: Array<string>;
  /** CPUs of one replica; not counted, if left out. */
  cpus?: number | null;
  /** Jobs that have to end before it starts. */
  depends_on?: Array<Dependency>;
  /** Variables of the program, besides those of the node. */
  env?: Record<string, string>;
  /** How it may be moved and resized. */
  flexibility?: Flexibility;
  /** Types of GPU it may run on, by name; any, if left out. */
  gpu_types?: Array<string>;
  /** GPUs of one replica, always on one node. A program that starts a process for each GPU itself has one replica. */
  gpus_per_replica?: number;
  /** Memory of one replica in bytes, or as text such as `16G`; not counted, if left out. */
  memory?: number | null;
  /** For people; need not be unique. The name of the script or program, if left out. */
  name?: string;
  /** Who submitted it. The server knows; whoever submits leaves it out. */
  owner?: string;
  /** Higher goes first. A job below 0 is opportunistic: it uses what others leave. */
  priority?: number;
  /** Replicas it begins with, where so many fit, or `replicas_min`, if left out; a rigid job has exactly as many. */
  replicas?: number;
  /** Maximum number of replicas; 64, or as many as it begins with, if left out. */
  replicas_max?: number | null;
  /** Fewest replicas it can run with. */
  replicas_min?: number;
  /** Failures after which it is tried again. */
  retries?: number;
  /** Variables of the program whose values are never shown again. */
  secrets?: Record<string, string>;
  /** Seconds that it may hold GPUs, or a text such as `8h`; then it is stopped. */
  time_limit?: number | null;
  work?: Work | null;
  /** Where the program starts; absolute. */
  working_dir: string;
};

/** Something that a replica wrote, as a message of `GET /v1/jobs/{id}/logs/stream`. */
export type LogPiece = {
  /** Bytes before this piece that are not kept any more, and were never told. */
  dropped?: number;
  /** Where its log goes on, for a stream that does. */
  position: string;
  /** Which. */
  replica: number;
  /** What, with whatever ends its lines. */
  text: string;
};

/** Response to `DELETE /v1/nodes/{name}`. */
export type MachineRemoval = {
  /** Whether it is gone already; else it ends what it runs, and is gone then. */
  is_gone: boolean;
};

/** A node that is used, or still has replicas. */
export type Node = {
  agent?: NodeAgent | null;
  /** After failures: nothing is placed there until then. */
  cooling_until_ms?: number | null;
  /** CPUs for its replicas; nothing if they are not counted. */
  cpus?: number | null;
  /** CPUs that replicas were given, those on their way out included. */
  cpus_held?: number;
  /** From when on it is emptied because it ends, if that is known; milliseconds since 1970. */
  drains_at_ms?: number | null;
  /** When it ends, if that is known; milliseconds since 1970. */
  ends_at_ms?: number | null;
  /** Their kind. */
  gpu_type: string;
  /** Its GPUs. */
  gpus: number;
  /** GPUs that replicas hold, those on their way out included. */
  gpus_held: number;
  /** Whether it is being emptied. */
  is_draining: boolean;
  /** Whether it is not used any more because its machine has changed: it goes with the last replica on it. */
  is_retired?: boolean;
  /** Whether it does not answer: nothing is placed there, and what it had stays taken. */
  is_unreachable?: boolean;
  /** Jobs with replicas there. */
  jobs: Array<NodeJob>;
  /** Bytes of memory for its replicas; nothing if they are not counted. */
  memory?: number | null;
  /** Bytes of memory that replicas were given, those on their way out included. */
  memory_held?: number;
  /** Its name. */
  name: string;
};

/** A machine that has joined by `pollux node --join`. */
export type NodeAgent = {
  /** The host under which its replicas are reached. */
  address: string;
  /** Whether it is connected. */
  is_connected: boolean;
  /** When it was heard last, if it was since the scheduler has started. */
  last_contact_ms?: number | null;
  /** The machine's name. */
  machine: string;
  /** The version of its program. */
  version: string;
};

/** A job on a node. */
export type NodeJob = {
  /** GPUs of each replica. */
  gpus_per_replica?: number;
  /** Which. */
  id: number;
  /** Whether it uses GPUs that others own, beside them. */
  is_guest: boolean;
  /** Its name. */
  name: string;
  /** Its replicas there. */
  replicas: number;
};

/** Response to `GET /v1/nodes`. */
export type NodeList = {
  /** In order of their names. */
  held_back?: Array<HeldBackNode>;
  /** In order of their names. */
  nodes: Array<Node>;
};

/** Body of `POST /v1/node-tokens`. */
export type NodeTokenRequest = {
  /** How long machines may join with it, in seconds; 7 days at most. */
  expires_s: number;
};

/** A job that would have to give up a GPU. */
export type Payer = {
  /** Its goodput without that GPU against now, minus 1. */
  change: number;
  /** Which. */
  id: number;
  /** Its name. */
  name: string;
};

/** Where a job is in its life. */
export type Phase = "queued" | "starting" | "running" | "resizing" | "paused" | "succeeded" | "failed" | "cancelled";

/** A job that a plan gave other GPUs than the one before. */
export type PlanChange = {
  /** GPUs before. */
  from: number;
  /** Its predicted goodput there against before, minus 1. */
  goodput_change?: number | null;
  /** Which. */
  id: number;
  /** Its name. */
  name: string;
  /** Why, in a few words. */
  text: string;
  /** GPUs since. */
  to: number;
};

/** A job that a plan left as it was. */
export type PlanKept = {
  /** What keeps it from having more, as one word. */
  binding: string;
  /** GPUs that it keeps. */
  gpus: number;
  /** Which. */
  id: number;
  /** Its name. */
  name: string;
  /** The same in a few words. */
  text: string;
};

/** Response to `GET /v1/plan`: the last plan, and why it is as it is. */
export type PlanStatus = {
  /** When it was made; nothing before the first. */
  at_ms?: number | null;
  /** When a plan changed anything last. */
  changed_ms?: number | null;
  /** What that one changed; the largest changes of many. */
  changes: Array<PlanChange>;
  /** Jobs that keep what they have, or wait, and why; the first of many. */
  kept: Array<PlanKept>;
  /** When the next one is made. */
  next_round_ms?: number | null;
  /** How good it is by the policy's own measure, where it has one. */
  objective?: number | null;
  /** Who decides. */
  policy: string;
  /** What no plan can be above by that measure. */
  upper_bound?: number | null;
};

/** Response to `POST /v1/checkpoints/prune`. */
export type PruneReport = {
  /** Room that this frees. */
  bytes_freed: number;
  /** Room that those take. */
  bytes_kept: number;
  /** Room that checkpoints of live jobs take, which are never deleted. */
  bytes_live: number;
  /** What was deleted, or would be; the oldest first. */
  deleted: Array<JobCheckpoints>;
  /** Whether nothing was really deleted. */
  dry_run: boolean;
  /** What could not be deleted, a line for each. */
  failures: Array<string>;
  /** Jobs that are over and whose checkpoints are kept. */
  jobs_kept: number;
};

/** Body of `POST /v1/checkpoints/prune`: checkpoints of jobs that are over. What is left out is as the server was told at its start. */
export type PruneRequest = {
  /** Only says what would be deleted. */
  dry_run?: boolean;
  /** Of the others, deletes the oldest until they take no more room than this. */
  keep_bytes?: number | null;
  /** Deletes those of jobs that have been over for longer. */
  keep_for_s?: number | null;
};

/** Body of `POST /v1/jobs/{id}/ready`: every rank of the generation trains. */
export type ReadyRequest = {
  /** The group that speaks. */
  generation: number;
  /** Seconds that the training stood still for the change; left out by a group that was started afresh. */
  pause_s?: number | null;
};

/** Body of `POST /v1/jobs/{id}/rendezvous`, by rank 0: where it waits for the others of a generation. */
export type RendezvousRequest = {
  /** Host, as the others reach it. */
  address: string;
  /** The group that meets there. */
  generation: number;
  /** Port. */
  port: number;
};

/** Body of `POST /v1/jobs/{id}/reports`. */
export type ReportRequest = {
  /** The group that speaks. */
  generation: number;
  /** What its agent has learned. */
  report: Record<string, unknown>;
};

/** What a user may do. */
export type Role = "viewer" | "member" | "admin";

/** What a job is expected to do on some number of GPUs. */
export type SizeOutlook = {
  /** Total batch: the best, or the one that its user fixed where the policy leaves batches to users. */
  batch_size: number;
  /** What a sample is worth at that batch, against one of the baseline batch. */
  efficiency: number;
  /** Samples per second times efficiency. */
  goodput: number;
  /** Whether it was measured on so many, or the model goes beyond what it knows. */
  is_measured: boolean;
  /** On so many nodes, the fewest that hold them. */
  nodes: number;
  /** How many. */
  replicas: number;
  /** Samples per second. */
  samples_per_s: number;
};

/** One job of Slurm's. */
export type SlurmAllocation = {
  /** When it was asked for. */
  asked_ms: number;
  /** When it ends at the latest. */
  end_ms?: number | null;
  /** Why it is given back, if it is. */
  given_up?: string | null;
  /** The nodes that it has, in Slurm's words. */
  hosts: string;
  /** Its number there, once that is known. */
  job?: number | null;
  /** Its machines that have joined. */
  machines: Array<string>;
  /** Its name in Slurm. */
  name: string;
  /** Why it waits, in Slurm's word. */
  reason: string;
  /** `asked`, `waits` or `runs`. */
  stage: string;
  /** When Slurm expects to start it, or has started it. */
  start_ms?: number | null;
  /** What Slurm calls its state. */
  state: string;
};

/** A user's token, which itself is not kept. Times are in milliseconds since 1970. */
export type Token = {
  /** When it was made; not known of those of version 0.1. */
  created_ms?: number | null;
  /** From when on it opens nothing, if it ends. */
  expires_ms?: number | null;
  /** The user whom it is for. */
  label: string;
  /** When it was used last, to the minute; nothing if it never was. */
  last_used_ms?: number | null;
  /** What the user may do. */
  role: Role;
};

/** Response to `GET /v1/tokens`: tokens of users, not of jobs. */
export type TokenList = {
  /** In order of their labels. */
  tokens: Array<Token>;
};

/** Body of `POST /v1/tokens`. */
export type TokenRequest = {
  /** For how long it opens anything; without it until it is revoked. */
  expires_s?: number | null;
  /** The user whom it is for; 1 to 64 letters, digits, `-`, `_` or `.`, and without a token so far. */
  label: string;
  /** What the user may do. */
  role?: Role;
};

/** What a training is known from. */
export type TrainsLike = {
  /** What a job has told of itself, live or over. */
  job: number;
} | {
  /** An application that the simulator knows, such as `cifar10`. */
  application: string;
};

/** What a job is expected to do on a type of GPU, on as many as it has, or on its fewest while it waits. */
export type TypeOutlook = {
  /** Total batch. */
  batch_size: number;
  /** Goodput against that on the type it is on, minus 1; nothing there, and while it waits. */
  change?: number | null;
  /** Samples per second times efficiency. */
  goodput: number;
  /** The type. */
  gpu_type: string;
  /** Whether it never ran there, so that what is known of other types and other jobs stands for it. */
  is_estimated: boolean;
  /** On so many nodes, the fewest that hold them. */
  nodes: number;
  /** Replicas, which are fewer where there are not so many GPUs. */
  replicas: number;
  /** Samples per second. */
  samples_per_s: number;
};

/** Response to `POST /v1/what-if`. */
export type WhatIf = {
  average_completion_s?: BeforeAfter_f64 | null;
  /** Part of the GPUs that jobs hold until then, from 0 to 1. */
  gpu_utilisation: BeforeAfter_Option_f64;
  /** Seconds from now that were simulated. */
  horizon_s: BeforeAfter_f64;
  /** Live jobs in order of submission, then hypothetical ones. */
  jobs: Array<JobForecast>;
  /** Seconds from now until the last of them is complete. */
  makespan_s: BeforeAfter_Option_f64;
  /** What is to be known of the answer, a sentence each. */
  notes: Array<string>;
  /** The moment that both futures begin, in milliseconds since 1970. */
  now_ms: number;
  /** Who decides in each. */
  policy: BeforeAfter_String;
};

/** Response to `GET /v1/what-if`: what changes may name. */
export type WhatIfChoices = {
  /** Applications that a job can train like. */
  applications: Array<string>;
  /** Policies that can decide. */
  policies: Array<string>;
};

/** Body of `POST /v1/what-if`: what would be changed now. Nothing is: the answer is a simulation of the cluster as it is, and of one with all changes, in their order. Without changes it predicts the cluster as it is. */
export type WhatIfRequest = {
  /** What would be done. */
  changes?: Array<Change>;
};

/** How long a job is to train. */
export type Work = {
  /** Times through its data. */
  epochs: number;
} | {
  /** Steps at the baseline batch. */
  baseline_steps: number;
};
