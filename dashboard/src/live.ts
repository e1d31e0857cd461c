// The cluster as this tab knows it: what the server told, kept fresh by its events.
//
//   event ──> what it touches is asked for at once; more of the same waits until that is answered
//   clock ──> what changes without events (rates, progress) is asked for every few seconds, while somebody looks

import { batch, effect, signal } from "@preact/signals";
import type { ClusterStatus, Event, Job, JobDetail, JobList, Node, NodeList, PlanStatus } from "./api";
import { get } from "./client";
import { route } from "./router";
import { token } from "./session";
import { listen, pause } from "./stream";

const EVENTS_KEPT = 300;
/** Above so many jobs at once, one listing is cheaper than asking for each. */
const SINGLE_MAX = 12;
const LOOK_MS = 2_000;
/** Asking takes at most this part of the time. */
const LOOK_SHARE = 30;
/** Between two looks that events ask for. */
const GAP_MS = 120;
const PAGE = 1_000;

export type Connection = "connecting" | "live" | "lost";

export const connection = signal<Connection>("connecting");
export const cluster = signal<ClusterStatus | null>(null);
export const nodes = signal<Node[]>([]);
export const plan = signal<PlanStatus | null>(null);
export const liveJobs = signal<ReadonlyMap<number, Job>>(new Map());
/** Jobs that are over, the newest first, as far as they were asked for. */
export const endedJobs = signal<ReadonlyMap<number, Job>>(new Map());
export const moreEnded = signal<number | null>(null);
export const isLoaded = signal(false);
/** The newest first. */
export const events = signal<readonly Event[]>([]);
/** The newest event, for pages that have something of their own to ask for. */
export const latest = signal<Event | null>(null);
/** Counts the looks by the clock, for the same. */
export const looks = signal(0);
/** Milliseconds by which the cluster's clock is ahead of ours. */
const ahead = signal(0);
/** The cluster's time, every second. */
export const now = signal(Date.now());

export const hasEnded = (job: Job) => job.ended_ms != null;

/** Keeps everything fresh for as long as there is a token. */
export function follow(): void {
  effect(() => {
    if (token.value === null) return;
    const stop = new AbortController();
    void listen(
      {
        opened: () => {
          connection.value = "live";
          void refresh();
        },
        lost: () => {
          connection.value = "lost";
        },
        event: heard,
      },
      stop.signal,
    );
    void lookOften(stop.signal);
    return () => {
      stop.abort();
      forget();
    };
  });
  setInterval(() => {
    if (!document.hidden) now.value = Date.now() + ahead.value;
  }, 1_000);
}

function forget(): void {
  batch(() => {
    connection.value = "connecting";
    cluster.value = null;
    nodes.value = [];
    plan.value = null;
    liveJobs.value = new Map();
    endedJobs.value = new Map();
    events.value = [];
    isLoaded.value = false;
  });
}

function heard(event: Event): void {
  batch(() => {
    events.value = [event, ...events.value].slice(0, EVENTS_KEPT);
    latest.value = event;
  });
  if (event.job != null) void touch(event.job);
  lookSoon();
}

/** Jobs that are being asked for, and whether something happened to them since. */
const asking = new Map<number, boolean>();
let isListDue = false;

/** Asks for a job at once; if that is under way, once more after it. */
async function touch(id: number): Promise<void> {
  if (asking.has(id)) {
    asking.set(id, true);
    return;
  }
  if (asking.size >= SINGLE_MAX) {
    isListDue = true;
    return;
  }
  do {
    asking.set(id, false);
    await single(id).catch(() => undefined);
  } while (asking.get(id));
  asking.delete(id);
}

let isLooking = false;
let isLookDue = false;

/** Looks at the cluster at once; while a look is under way, once more a little after it. */
function lookSoon(): void {
  isLookDue = true;
  if (isLooking) return;
  isLooking = true;
  void (async () => {
    while (isLookDue) {
      isLookDue = false;
      const list = isListDue ? listLive() : Promise.resolve();
      isListDue = false;
      await Promise.allSettled([summary(), list]);
      if (isLookDue) await new Promise((resolve) => setTimeout(resolve, GAP_MS));
    }
    isLooking = false;
  })();
}

async function lookOften(stop: AbortSignal): Promise<void> {
  let gap = LOOK_MS;
  while (!stop.aborted) {
    await pause(gap, stop);
    if (stop.aborted || document.hidden || connection.value !== "live") continue;
    const began = performance.now();
    await Promise.allSettled([summary(), route.value.page === "jobs" ? listLive() : Promise.resolve()]);
    looks.value += 1;
    gap = Math.max(LOOK_MS, (performance.now() - began) * LOOK_SHARE);
  }
}

/** Everything anew: at the start, and when the server is back. */
async function refresh(): Promise<void> {
  const recent = (async () => {
    const status = await summary();
    const after = Math.max(0, status.last_event - EVENTS_KEPT / 3);
    const list = await get<{ events: Event[] }>(`/v1/events?after=${after}&limit=${EVENTS_KEPT}`);
    const known = new Map([...list.events, ...events.value].map((event) => [event.sequence, event]));
    events.value = [...known.values()].sort((a, b) => b.sequence - a.sequence).slice(0, EVENTS_KEPT);
  })();
  await Promise.allSettled([recent, listLive(true)]);
  isLoaded.value = true;
  looks.value += 1;
}

async function summary(): Promise<ClusterStatus> {
  const [status, list, why] = await Promise.all([
    get<ClusterStatus>("/v1/cluster"),
    get<NodeList>("/v1/nodes"),
    get<PlanStatus>("/v1/plan"),
  ]);
  batch(() => {
    ahead.value = status.now_ms - Date.now();
    cluster.value = status;
    nodes.value = list.nodes;
    plan.value = why;
  });
  return status;
}

/** All live jobs; with them come the newest of those that are over. */
async function listLive(isFirst = false): Promise<void> {
  const live = new Map<number, Job>();
  const over: Job[] = [];
  let query = `limit=${PAGE}`;
  for (;;) {
    const list = await get<JobList>(`/v1/jobs?${query}`);
    for (const job of list.jobs) {
      if (hasEnded(job)) over.push(job);
      else live.set(job.id, job);
    }
    if (isFirst && list.next_after_live == null) moreEnded.value = list.next_before ?? null;
    if (list.next_after_live == null) break;
    query = `limit=${PAGE}&after_live=${list.next_after_live}`;
  }
  batch(() => {
    liveJobs.value = live;
    endedJobs.value = merged(over, live);
  });
}

/** More of the jobs that are over, in one phase or in any. */
export async function listEnded(phase: string | null): Promise<void> {
  if (phase === null && moreEnded.value === null) return;
  const known = [...endedJobs.value.values()].filter((job) => job.phase === phase).map((job) => job.id);
  const before = phase === null ? moreEnded.value : known.length > 0 ? Math.min(...known) : null;
  const query = new URLSearchParams({ limit: `${PAGE}` });
  if (phase !== null) query.set("phase", phase);
  if (before !== null) query.set("before", `${before}`);
  const list = await get<JobList>(`/v1/jobs?${query}`);
  batch(() => {
    endedJobs.value = merged(list.jobs.filter(hasEnded), liveJobs.value);
    if (phase === null) moreEnded.value = list.next_before ?? null;
  });
}

async function single(id: number): Promise<void> {
  const job = await get<JobDetail>(`/v1/jobs/${id}`);
  batch(() => {
    const live = new Map(liveJobs.value);
    if (hasEnded(job)) {
      live.delete(id);
      endedJobs.value = merged([job], live);
    } else live.set(id, job);
    liveJobs.value = live;
  });
}

function merged(over: Job[], live: ReadonlyMap<number, Job>): Map<number, Job> {
  const all = new Map(endedJobs.value);
  for (const job of over) all.set(job.id, job);
  for (const id of live.keys()) all.delete(id);
  return all;
}
