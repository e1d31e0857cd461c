import { useEffect, useMemo, useState } from "preact/hooks";
import type { Job, JobList, Phase } from "../api";
import { get, reason } from "../client";
import { duration, gpus, number, plural, times, UNKNOWN, whole } from "../format";
import { endedJobs, hasEnded, isLoaded, listEnded, liveJobs, moreEnded, now } from "../live";
import { JobActions, JobLink, PhaseBadge, Progress } from "../parts/job";
import { SubmitDialog } from "../parts/submit";
import { Window } from "../parts/window";
import { refine, route } from "../router";

const ROW_HEIGHT = 38;
const HEAD_HEIGHT = 34;
/** Hits of a search that are asked for at once. */
const FOUND_MAX = 200;
/** Between two letters of somebody who types. */
const TYPING_MS = 150;
const NOTHING: readonly Job[] = [];

interface Column {
  key: string;
  title: string;
  /** What it is sorted by; what is unknown goes last. */
  by: (job: Job) => number | string | null | undefined;
  cell: (job: Job) => preact.ComponentChildren;
  className?: string;
}

const age = (job: Job) => (now.value - job.submitted_ms) / 1_000;
const took = (job: Job) =>
  job.ended_ms == null ? undefined : `over after ${duration((job.ended_ms - job.submitted_ms) / 1_000)}`;

const COLUMNS: Column[] = [
  { key: "id", title: "Job", by: (job) => job.id, cell: (job) => job.id, className: "num" },
  {
    key: "name",
    title: "Name",
    by: (job) => job.name.toLowerCase(),
    cell: (job) => <JobLink id={job.id} name={job.name} />,
  },
  { key: "phase", title: "Phase", by: (job) => job.phase, cell: (job) => <PhaseBadge phase={job.phase} /> },
  {
    key: "gpus",
    title: "GPUs",
    by: (job) => gpus(job),
    cell: (job) => (job.replicas > 0 ? gpus(job) : "–"),
    className: "num",
  },
  {
    key: "batch",
    title: "Batch",
    by: (job) => job.batch_size,
    cell: (job) => number(job.batch_size),
    className: "num wide",
  },
  { key: "progress", title: "Progress", by: (job) => job.progress, cell: (job) => <Progress part={job.progress} /> },
  {
    key: "left",
    title: "Time left",
    by: (job) => job.remaining_s,
    cell: (job) => duration(job.remaining_s),
    className: "num",
  },
  {
    key: "goodput",
    title: "Goodput",
    by: (job) => job.goodput,
    cell: (job) => (job.goodput == null ? UNKNOWN : `${number(job.goodput)}/s`),
    className: "num wide",
  },
  {
    key: "share",
    title: "vs share",
    by: (job) => job.speedup,
    cell: (job) => times(job.speedup),
    className: "num wide",
  },
  {
    key: "age",
    title: "Age",
    by: age,
    cell: (job) => <span title={took(job)}>{duration(age(job))}</span>,
    className: "num",
  },
  { key: "act", title: "", by: () => null, cell: (job) => <JobActions job={job} isSmall />, className: "wide" },
];

type Filter = "live" | "ended" | "all" | Phase;

const FILTERS: [Filter, string][] = [
  ["live", "Live"],
  ["running", "Running"],
  ["queued", "Queued"],
  ["paused", "Paused"],
  ["ended", "Finished"],
  ["succeeded", "Succeeded"],
  ["failed", "Failed"],
  ["cancelled", "Cancelled"],
  ["all", "All"],
];

const ENDED: readonly string[] = ["ended", "succeeded", "failed", "cancelled", "all"];

/** Every job, found and sorted. */
export function JobsPage() {
  const { query } = route.value;
  const filter = (query.get("phase") ?? "live") as Filter;
  const text = query.get("q") ?? "";
  const sort = query.get("sort") ?? "";
  const [isSubmitting, setSubmitting] = useState(false);
  const search = useSearch(filter, text);
  const rest = useMore(filter);
  const { more, error } = search ?? rest;
  const jobs = useShown(filter, text, sort, search?.found ?? NOTHING);
  return (
    <div class="jobs">
      <div class="toolbar">
        <h1>Jobs</h1>
        <input
          type="search"
          placeholder="Name or number"
          aria-label="Find jobs by name or number"
          value={text}
          onInput={(event) => refine({ q: event.currentTarget.value })}
        />
        <div class="choice" role="group" aria-label="Phase">
          {FILTERS.map(([value, title]) => (
            <button
              key={value}
              type="button"
              aria-pressed={value === filter}
              onClick={() => refine({ phase: value === "live" ? "" : value })}
            >
              {title} <Count filter={value} />
            </button>
          ))}
        </div>
        <span class="top-gap" />
        <button type="button" class="primary" onClick={() => setSubmitting(true)}>
          Submit a job
        </button>
      </div>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      <Table jobs={jobs} sort={sort} more={more} />
      <TableFooter jobs={jobs} filter={filter} text={text} sort={sort} isPartial={more !== undefined} />
      {isSubmitting && <SubmitDialog close={() => setSubmitting(false)} />}
    </div>
  );
}

function Count({ filter }: { filter: Filter }) {
  if (!isLoaded.value || ENDED.includes(filter)) return null;
  const jobs = [...liveJobs.value.values()];
  const count = filter === "live" ? jobs.length : jobs.filter((job) => matches(job, filter)).length;
  return <span class="count">{whole(count)}</span>;
}

function useShown(filter: Filter, text: string, sort: string, found: readonly Job[]): Job[] {
  const [live, ended] = [liveJobs.value, endedJobs.value];
  // Time alone changes the order of nothing.
  return useMemo(() => {
    const over = new Map([...found.map((job) => [job.id, job] as const), ...ended]);
    const pool = [
      ...(filter === "ended" ? [] : live.values()),
      ...(ENDED.includes(filter) ? [...over.values()].sort((a, b) => b.id - a.id) : []),
    ];
    const isAny = filter === "live" || filter === "all";
    const inPhase = (job: Job) => isAny || (filter === "ended" ? hasEnded(job) : matches(job, filter));
    const wanted = text.trim().toLowerCase();
    const isNamed = (job: Job) => wanted === "" || job.name.toLowerCase().includes(wanted) || `${job.id}` === wanted;
    return sorted(
      pool.filter((job) => inPhase(job) && isNamed(job)),
      sort,
    );
  }, [live, ended, found, filter, text, sort]);
}

/** Jobs whose group is on its way are running to people. */
function matches(job: Job, filter: Filter): boolean {
  return job.phase === filter || (filter === "running" && (job.phase === "resizing" || job.phase === "starting"));
}

function sorted(jobs: Job[], sort: string): Job[] {
  const column = COLUMNS.find(({ key }) => key === sort.replace("-", ""));
  if (!column) return jobs;
  const sign = sort.startsWith("-") ? -1 : 1;
  const keyed = jobs.map((job) => ({ job, value: column.by(job) }));
  keyed.sort((a, b) => {
    if (a.value == null || b.value == null) return Number(a.value == null) - Number(b.value == null);
    if (a.value === b.value) return a.job.id - b.job.id;
    return a.value < b.value ? -sign : sign;
  });
  return keyed.map(({ job }) => job);
}

interface Found {
  query: string;
  jobs: readonly Job[];
  /** Where the next page begins; nothing after the last one. */
  next: number | null;
  error: string;
}

/** Lets the server look through the jobs that are over, however many there are; nothing if that is not asked for. */
function useSearch(filter: Filter, text: string) {
  const wanted = text.trim();
  const phase: Record<string, string> = filter === "ended" || filter === "all" ? {} : { phase: filter };
  const query = `${new URLSearchParams({ limit: `${FOUND_MAX}`, search: wanted, ...phase })}`;
  const isAsked = wanted !== "" && ENDED.includes(filter);
  const [found, setFound] = useState<Found | null>(null);
  const known = isAsked && found?.query === query ? found : null;
  const fetchPage = async (before: number, jobs: readonly Job[], signal?: AbortSignal) => {
    try {
      const page = await get<JobList>(`/v1/jobs?${query}&before=${before}`, signal);
      setFound({ query, jobs: [...jobs, ...page.jobs], next: page.next_before ?? null, error: "" });
    } catch (problem) {
      if (!signal?.aborted) setFound({ query, jobs, next: null, error: reason(problem) });
    }
  };
  useEffect(() => {
    if (!isAsked) return;
    const stop = new AbortController();
    const typed = setTimeout(() => void fetchPage(Number.MAX_SAFE_INTEGER, [], stop.signal), TYPING_MS);
    return () => {
      clearTimeout(typed);
      stop.abort();
    };
  }, [query, isAsked]);
  if (!isAsked) return null;
  const next = known?.next ?? null;
  const more = known && next !== null ? () => void fetchPage(next, known.jobs) : undefined;
  return { found: known?.jobs ?? NOTHING, more, error: known?.error ?? "" };
}

/** Fetches more of the jobs that are over when the end of the table comes into view. */
function useMore(filter: Filter) {
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [complete, setComplete] = useState<Record<string, boolean>>({});
  const phase = filter === "ended" || filter === "all" ? null : filter;
  const isComplete = phase === null ? moreEnded.value === null : complete[phase];
  const fetchMore = async () => {
    setBusy(true);
    try {
      const before = endedJobs.value.size;
      await listEnded(phase);
      if (phase !== null && endedJobs.value.size === before) setComplete({ ...complete, [phase]: true });
      setError("");
    } catch (problem) {
      setError(reason(problem));
    }
    setBusy(false);
  };
  const wants = isLoaded.value && ENDED.includes(filter) && !isBusy && !isComplete && error === "";
  return { more: wants ? () => void fetchMore() : undefined, error };
}

function Table({ jobs, sort, more }: { jobs: Job[]; sort: string; more: (() => void) | undefined }) {
  const head = (
    <div class="row row-head" role="row" aria-rowindex={1}>
      {COLUMNS.map((column) => (
        <Heading key={column.key} column={column} sort={sort} />
      ))}
    </div>
  );
  const row = (idx: number) => {
    const job = jobs[idx];
    return job && <Row key={job.id} job={job} idx={idx} />;
  };
  if (jobs.length === 0 && !more) return null;
  return (
    <Window
      className="table card"
      role="table"
      label="Jobs"
      rowCount={jobs.length + 1}
      count={jobs.length}
      rowHeight={ROW_HEIGHT}
      height={HEAD_HEIGHT + 2 + jobs.length * ROW_HEIGHT}
      head={head}
      row={row}
      onEnd={more}
    />
  );
}

function Heading({ column, sort }: { column: Column; sort: string }) {
  const isBy = sort.replace("-", "") === column.key;
  const isDown = isBy && sort.startsWith("-");
  const className = `head ${column.className ?? ""}`;
  if (!column.title) {
    return (
      <span role="columnheader" class={className}>
        <span class="unseen">Actions</span>
      </span>
    );
  }
  const next = isDown ? "" : isBy ? `-${column.key}` : column.key;
  return (
    <span role="columnheader" class={className} aria-sort={isDown ? "descending" : isBy ? "ascending" : "none"}>
      <button type="button" onClick={() => refine({ sort: next })}>
        {column.title}
        <span class="arrow" aria-hidden="true">
          {isDown ? "↓" : isBy ? "↑" : ""}
        </span>
      </button>
    </span>
  );
}

function Row({ job, idx }: { job: Job; idx: number }) {
  return (
    <div class="row" role="row" aria-rowindex={idx + 2} style={{ height: `${ROW_HEIGHT}px` }}>
      {COLUMNS.map((column) => (
        <span key={column.key} role="cell" class={`cell-${column.key} ${column.className ?? ""}`}>
          {column.cell(job)}
        </span>
      ))}
    </div>
  );
}

interface FootingProps {
  jobs: readonly Job[];
  filter: Filter;
  text: string;
  sort: string;
  /** There are more than were asked for so far. */
  isPartial: boolean;
}

function TableFooter({ jobs, filter, text, sort, isPartial }: FootingProps) {
  if (!isLoaded.value) return <p class="soft pad">Loading…</p>;
  if (jobs.length > 0) {
    const note = isPartial ? `, more come as you scroll${sort ? "; these are sorted" : ""}` : "";
    return <p class="soft footing">{`${plural(jobs.length, "job")}${note}`}</p>;
  }
  if (text) return <p class="empty">No job here has “{text}” in its name.</p>;
  return (
    <div class="empty">
      <p>{filter === "live" ? "No job waits or runs." : "No job is in this phase."}</p>
      {filter === "live" && (
        <p class="soft">
          Submit one here, or with <code>pollux submit -- python train.py</code>
        </p>
      )}
    </div>
  );
}
