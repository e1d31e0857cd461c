import { useEffect, useState } from "preact/hooks";
import type { Event, EventList as EventsOfJob, Explanation, JobDetail, JobSeries, JobSpec } from "../api";
import { get, isFinal, reason } from "../client";
import { coalesced } from "../coalesced";
import { change, duration, gpus, moment, number, percent, times, whole } from "../format";
import { connection, hasEnded, looks, newest, now, refreshes, TOP, watch } from "../live";
import { EventList } from "../parts/events";
import { GoodputCurve } from "../parts/goodput-curve";
import { JobActions, JobDot, PhaseBadge, Progress } from "../parts/job";
import { JobCurves } from "../parts/job-curves";
import { Logs } from "../parts/logs";
import { quoted } from "../words";

interface Known {
  job: JobDetail;
  explanation: Explanation;
  series: JobSeries;
}

const EVENTS_MAX = 500;

/** Everything about a job. */
export function JobPage({ id }: { id: number }) {
  const { known, error } = useJob(id);
  const events = useEvents(id);
  if (!known) return <p class={error ? "error pad" : "soft pad"}>{error || "Loading…"}</p>;
  const { job, explanation, series } = known;
  return (
    <div class="job">
      <div class="toolbar">
        <h1 class="job-title">
          <JobDot id={job.id} />
          <span class="job-name">{job.name}</span> <span class="soft">job {job.id}</span>
        </h1>
        <PhaseBadge phase={job.phase} />
        <span class="soft">since {moment(job.phase_since_ms)}</span>
        <span class="top-gap" />
        <JobActions job={job} />
      </div>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      <Facts job={job} />
      <div class="columns">
        <section class="card" aria-labelledby="why-title">
          <h2 id="why-title">Why it has what it has</h2>
          <div class="why">
            {explanation.sentences.map((sentence) => (
              <p key={sentence}>{sentence}</p>
            ))}
            <Worth explanation={explanation} />
          </div>
        </section>
        <section class="card" aria-labelledby="curve-title">
          <h2 id="curve-title">Predicted goodput by number of GPUs</h2>
          <GoodputCurve explanation={explanation} job={job} />
        </section>
      </div>
      <JobCurves series={series} gpusPerReplica={job.gpus_per_replica ?? 1} />
      <Logs job={job.id} replicas={job.replicas_logged} />
      <div class="columns">
        <section class="card" aria-labelledby="job-events-title">
          <h2 id="job-events-title">Events</h2>
          <EventList events={events} isOfOneJob />
        </section>
        <Configuration job={job} />
      </div>
    </div>
  );
}

/** What is known of it, asked for again whenever it may have changed. */
function useJob(id: number) {
  const [known, setKnown] = useState<Known | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    const path = `/v1/jobs/${id}`;
    // What is over, or was never there, changes no more.
    let isSettled = false;
    const look = coalesced(async () => {
      if (stop.signal.aborted || isSettled) return;
      try {
        const [job, explanation, series] = await Promise.all([
          get<JobDetail>(path, stop.signal),
          get<Explanation>(`${path}/explanation`, stop.signal),
          get<JobSeries>(`${path}/series`, stop.signal),
        ]);
        isSettled = hasEnded(job);
        setKnown({ job, explanation, series });
        setError("");
      } catch (problem) {
        isSettled = isFinal(problem);
        // The page tells of a server that is away.
        const isTold = isSettled || connection.value === "live";
        if (isTold && !stop.signal.aborted) setError(reason(problem));
      }
    });
    const leave = [
      looks.subscribe(() => void look()),
      watch((news) => {
        if (news.some((event) => event.job === id)) void look();
      }),
    ];
    return () => {
      stop.abort();
      for (const end of leave) end();
    };
  }, [id]);
  return { known, error };
}

/** What happened to it, the newest first: the last of it is asked for, and then told. */
function useEvents(id: number): readonly Event[] {
  const [events, setEvents] = useState<readonly Event[]>([]);
  useEffect(() => {
    const stop = new AbortController();
    const add = (more: readonly Event[]) => setEvents((known) => newest([...known, ...more], EVENTS_MAX));
    const ask = async () => {
      const list = await get<EventsOfJob>(`/v1/events?job=${id}&before=${TOP}&limit=${EVENTS_MAX}`, stop.signal);
      const since = list.events[0]?.sequence ?? 0;
      // Between those and what was heard before some may be missing.
      setEvents((known) => known.filter((event) => event.sequence >= since));
      add(list.events);
    };
    const leave = [
      // It is asked again when the server is back.
      refreshes.subscribe(() => void ask().catch(() => undefined)),
      watch((news) => {
        const own = news.filter((event) => event.job === id);
        if (own.length > 0) add(own);
      }),
    ];
    return () => {
      stop.abort();
      for (const end of leave) end();
    };
  }, [id]);
  return events;
}

function Facts({ job }: { job: JobDetail }) {
  const age = ((job.ended_ms ?? now.value) - job.submitted_ms) / 1_000;
  const facts: [string, preact.ComponentChildren][] = [
    ["GPUs", job.replicas > 0 ? `${gpus(job)} on ${job.nodes === 1 ? "1 node" : `${job.nodes} nodes`}` : "none"],
    ["Progress", <Progress key="progress" part={job.progress} />],
    ["Time left", duration(job.remaining_s)],
    ["Batch", job.batch_size == null ? "–" : `${whole(job.batch_size)} = ${batch(job)}`],
    ["Learning rate", job.learning_rate_factor == null ? "–" : times(job.learning_rate_factor)],
    ["Throughput", job.samples_per_s == null ? "–" : `${number(job.samples_per_s)}/s`],
    ["Efficiency", percent(job.efficiency)],
    ["Goodput", job.goodput == null ? "–" : `${number(job.goodput)}/s`],
    ["vs equal share", times(job.speedup)],
    ["Finish time vs share", times(job.unfairness)],
    ["Age", duration(age)],
    ["Waited", duration(job.queued_s)],
    ["GPU time", duration(job.attained_gpu_s)],
    ["Restarts", whole(job.restarts)],
  ];
  return (
    <dl class="facts card">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function batch(job: JobDetail): string {
  const steps = (job.accumulation_steps ?? 0) + 1;
  return `${job.replicas} × ${job.local_batch ?? "?"}${steps > 1 ? ` × ${steps}` : ""}`;
}

function Worth({ explanation }: { explanation: Explanation }) {
  const { one_more: more, one_fewer: fewer } = explanation;
  if (more == null && fewer == null) return null;
  return (
    <p class="worth">
      {fewer != null && <span class="tag">one fewer {change(fewer)}</span>}
      {more != null && <span class="tag">one more {change(more)}</span>}
      {explanation.fair_share != null && <span class="tag">equal share {number(explanation.fair_share)} GPUs</span>}
    </p>
  );
}

function Configuration({ job }: { job: JobDetail }) {
  const { spec } = job;
  const rows: [string, string][] = [
    ["Command", spec.command.map(quoted).join(" ")],
    ["Folder", spec.working_dir],
    ["Owner", spec.owner || "unknown"],
    ["Replicas", `${spec.replicas_min ?? 1} to ${spec.replicas_max ?? 64}, ${spec.replicas ?? 1} to begin with`],
    ["Each replica", resources(spec)],
    ["Flexibility", (spec.flexibility ?? "elastic").replace("_", " ")],
    ["Work", work(job)],
    ["Priority", `${spec.priority ?? 0}`],
    ["Retries", `${job.retries} of ${spec.retries ?? 3}`],
    ["Checkpoints", job.checkpoint_dir],
  ];
  if (spec.gpu_types?.length) rows.push(["GPU types", spec.gpu_types.join(", ")]);
  if (spec.time_limit != null) rows.push(["Time limit", duration(spec.time_limit)]);
  for (const { job: other, after } of spec.depends_on ?? []) {
    rows.push(["After", `job ${other} ${after === "end" ? "ends" : "succeeds"}`]);
  }
  if (job.failure) rows.unshift(["Failed because", job.failure]);
  for (const [name, value] of Object.entries(spec.env ?? {})) rows.push([name, value]);
  for (const name of Object.keys(spec.secrets ?? {})) rows.push([name, "secret"]);
  return (
    <section class="card" aria-labelledby="configuration-title">
      <h2 id="configuration-title">Configuration</h2>
      <dl class="settings">
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <h3>Resubmit command</h3>
      <pre class="command" tabIndex={0} role="region" aria-label="Command">
        {commandLine(job)}
      </pre>
    </section>
  );
}

function work({ spec: { work } }: JobDetail): string {
  if (work == null) return "not declared";
  return "epochs" in work
    ? `${whole(work.epochs)} epochs`
    : `${whole(work.baseline_steps)} steps at the baseline batch`;
}

function resources({ gpus_per_replica: gpus, cpus, memory }: JobSpec): string {
  const parts = [gpus === 1 ? "1 GPU" : `${gpus ?? 1} GPUs`];
  if (cpus != null) parts.push(cpus === 1 ? "1 CPU" : `${cpus} CPUs`);
  if (memory != null) parts.push(`${number(memory / 2 ** 30)} GiB of memory`);
  return parts.join(", ");
}

/** The command that submits the same again. */
function commandLine({ spec }: JobDetail): string {
  const options: string[] = [];
  const add = (name: string, value: string | number) => options.push(`${name} ${quoted(`${value}`)}`);
  if (spec.name) add("--name", spec.name);
  add("--replicas", spec.replicas ?? 1);
  if (spec.flexibility === "rigid") options.push("--rigid");
  else {
    add("--replicas-min", spec.replicas_min ?? 1);
    if (spec.replicas_max != null) add("--replicas-max", spec.replicas_max);
  }
  if (spec.flexibility === "non_preemptible") options.push("--non-preemptible");
  if (spec.gpus_per_replica !== undefined && spec.gpus_per_replica !== 1) {
    add("--gpus-per-replica", spec.gpus_per_replica);
  }
  if (spec.cpus != null) add("--cpus", spec.cpus);
  if (spec.memory != null) add("--memory", spec.memory);
  if (spec.gpu_types?.length) add("--gpu-types", spec.gpu_types.join(","));
  if (spec.time_limit != null) add("--time-limit", spec.time_limit);
  if (spec.batch_size != null) add("--batch-size", spec.batch_size);
  if (spec.priority) options.push(`--priority=${spec.priority}`);
  if (spec.work != null) {
    if ("epochs" in spec.work) add("--epochs", spec.work.epochs);
    else add("--baseline-steps", spec.work.baseline_steps);
  }
  if (spec.retries !== undefined && spec.retries !== 3) add("--retries", spec.retries);
  for (const [name, value] of Object.entries(spec.env ?? {})) add("--env", `${name}=${value}`);
  for (const name of Object.keys(spec.secrets ?? {})) add("--secrets", name);
  const submit = ["pollux submit", ...options, `-- ${spec.command.map(quoted).join(" ")}`].join(" \\\n  ");
  return `cd ${quoted(spec.working_dir)}\n${submit}`;
}
