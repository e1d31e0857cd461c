// The cluster as this tab knows it: what the server told, kept fresh by its events.
//
//   event ──> what it touches is asked for at once; more of the same waits until that is answered
//   clock ──> what changes without events (rates, progress) is asked for every few seconds
//
// Nothing is asked for while nobody looks; whoever looks again is told everything anew.

import { batch, effect, signal } from "@preact/signals";
import type {
  ClusterStatus,
  Event,
  EventList,
  HeldBackNode,
  Job,
  JobDetail,
  JobList,
  Node,
  NodeList,
  PlanStatus,
} from "./api";
import { get, isAway, reason } from "./client";
import { coalesced } from "./coalesced";
import { route } from "./router";
import { token } from "./session";
import { listen, type Message, pause } from "./stream";
import { isWatched } from "./watched";

const EVENTS_KEPT = 300;
const EVENTS_ASKED = 100;
/** Above so many jobs at once, one listing is cheaper than asking for each. */
const SINGLE_MAX = 12;
const LOOK_MS = 2_000;
/** Asking takes at most this part of the time. */
const LOOK_SHARE = 30;
/** Between two looks that events ask for. */
const GAP_MS = 120;
const PAGE = 1_000;
/** Jobs that end before one's eyes, until only the newest are kept. */
const ENDED_MAX = 10_000;
/** Above every number that the server gives. */
export const TOP = Number.MAX_SAFE_INTEGER;

export type Connection = "connecting" | "live" | "lost";

export const connection = signal<Connection>("connecting");
/** What the server refuses to tell, in its words; what is shown may be old. */
export const refusal = signal<string | null>(null);
export const cluster = signal<ClusterStatus | null>(null);
export const nodes = signal<Node[]>([]);
export const heldBack = signal<HeldBackNode[]>([]);
export const plan = signal<PlanStatus | null>(null);
export const liveJobs = signal<ReadonlyMap<number, Job>>(new Map());
/** Jobs that are over, as far as they were asked for. */
export const endedJobs = signal<ReadonlyMap<number, Job>>(new Map());
/** Where their list goes on; null if there are no more. */
export const moreEnded = signal<number | null>(null);
export const isLoaded = signal(false);
/** The newest first. */
export const events = signal<readonly Event[]>([]);
/** Counts the looks by the clock, for pages that have something of their own to ask for. */
export const looks = signal(0);
/** Counts the times that everything was asked for anew, because events may have been missed. */
export const refreshes = signal(0);
/** Milliseconds by which the cluster's clock is ahead of ours. */
const ahead = signal(0);
/** The cluster's time, every second. */
export const now = signal(Date.now());

export const hasEnded = (job: Job) => job.ended_ms != null;

/** Keeps everything fresh for as long as there is a token and somebody who looks. */
export function follow(): void {
  effect(() => (token.value === null ? undefined : forget));
  effect(() => {
    if (token.value === null || !isWatched.value) return;
    const stop = new AbortController();
    void listen({ path: () => "/v1/events/stream", opened, heard, lost }, stop.signal);
    void lookOften(stop.signal);
    return () => {
      stop.abort();
      connection.value = "connecting";
    };
  });
  setInterval(() => {
    if (!document.hidden) now.value = Date.now() + ahead.value;
  }, 1_000);
}

function opened(): void {
  isFresh = false;
  connection.value = "live";
  void attempt(refresh());
}

function lost(problem: unknown, wasOpen: boolean): void {
  batch(() => {
    // A stream that breaks off may be back at once.
    connection.value = wasOpen ? "connecting" : "lost";
    refusal.value = isAway(problem) ? null : reason(problem);
  });
}

function forget(): void {
  batch(() => {
    refusal.value = null;
    cluster.value = null;
    nodes.value = [];
    heldBack.value = [];
    plan.value = null;
    liveJobs.value = new Map();
    endedJobs.value = new Map();
    moreEnded.value = null;
    cursors.clear();
    events.value = [];
    isLoaded.value = false;
  });
}

type Watcher = (events: readonly Event[]) => void;
const watchers = new Set<Watcher>();

/** Tells of all events as they come, the oldest first, until what it returns is called. */
export function watch(watcher: Watcher): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

function heard(messages: readonly Message[]): boolean {
  const news = messages.map(({ data }) => JSON.parse(data) as Event);
  if (news.length > 0) {
    events.value = newest([...events.value, ...news], EVENTS_KEPT);
    for (const watcher of watchers) watcher(news);
    for (const { job } of news) if (job != null) touched.add(job);
    if (touched.size > 0) void attempt(askTouched());
    void lookSoon();
  }
  return false;
}

/** The newest events first, each once. */
export function newest(all: readonly Event[], count: number): Event[] {
  const known = new Map(all.map((event) => [event.sequence, event]));
  return [...known.values()].sort((a, b) => b.sequence - a.sequence).slice(0, count);
}

/** Waits for something that is shown; what is refused is told. */
async function attempt(work: Promise<unknown>): Promise<void> {
  try {
    await work;
    if (connection.value === "live") refusal.value = null;
  } catch (problem) {
    if (connection.value === "live") refusal.value = reason(problem);
  }
}

/** Jobs that something happened to since they were asked for. */
const touched = new Set<number>();

const askTouched = coalesced(async () => {
  const ids = [...touched];
  touched.clear();
  try {
    await (ids.length > SINGLE_MAX ? listLive() : Promise.all(ids.map(single)));
  } catch (problem) {
    for (const id of ids) touched.add(id);
    throw problem;
  }
});

const lookSoon = coalesced(async () => {
  await attempt(summary());
  await new Promise((resolve) => setTimeout(resolve, GAP_MS));
});

async function lookOften(stop: AbortSignal): Promise<void> {
  let gap = LOOK_MS;
  while (!stop.aborted) {
    await pause(gap, stop);
    if (stop.aborted || connection.value !== "live") continue;
    const began = performance.now();
    await attempt(isFresh ? look() : refresh());
    if (stop.aborted) return;
    looks.value += 1;
    gap = Math.max(LOOK_MS, (performance.now() - began) * LOOK_SHARE);
  }
}

async function look(): Promise<void> {
  const isListed = route.value.page === "jobs";
  await Promise.all([summary(), isListed ? listLive() : null, touched.size > 0 ? askTouched() : null]);
}

/** Whether everything was asked for since events are heard. */
let isFresh = false;

/** Everything anew: at the start, and when the server or the reader is back. */
const refresh = coalesced(async () => {
  const last = largest([...liveJobs.value.keys(), ...endedJobs.value.keys()]);
  const [, before, list] = await Promise.all([
    summary(),
    listLive(),
    get<EventList>(`/v1/events?before=${TOP}&limit=${EVENTS_ASKED}`),
  ]);
  batch(() => {
    // Between those and what was heard before some may be missing.
    const since = list.events[0]?.sequence ?? 0;
    const heard = events.value.filter((event) => event.sequence >= since);
    events.value = newest([...list.events, ...heard], EVENTS_KEPT);
    // Jobs may have come and gone unseen: their list is read again from its start.
    if (before === null || before > last + 1) {
      moreEnded.value = before;
      cursors.clear();
    }
    isFresh = true;
    isLoaded.value = true;
    looks.value += 1;
    refreshes.value += 1;
  });
});

const summary = coalesced(async () => {
  const [status, list, why] = await Promise.all([
    get<ClusterStatus>("/v1/cluster"),
    get<NodeList>("/v1/nodes"),
    get<PlanStatus>("/v1/plan"),
  ]);
  batch(() => {
    ahead.value = status.now_ms - Date.now();
    cluster.value = status;
    nodes.value = list.nodes;
    heldBack.value = list.held_back ?? [];
    plan.value = why;
  });
});

/** Jobs that were told one by one since the listing that is under way began: it may be older. */
let toldSince: Set<number> | null = null;

/** All live jobs, and those that were and are over. Returns where the list of the latter goes on. */
const listLive = coalesced(async () => {
  const since = new Set<number>();
  toldSince = since;
  try {
    const { live, over, before } = await listed();
    const known = new Set([...live.keys(), ...over.map((job) => job.id), ...since]);
    const gone = [...liveJobs.value.keys()].filter((id) => !known.has(id));
    over.push(...(await found(gone)));
    for (const id of since) {
      const job = liveJobs.value.get(id);
      if (job) live.set(id, job);
    }
    settle(live, over);
    return before;
  } finally {
    toldSince = null;
  }
});

async function listed() {
  const live = new Map<number, Job>();
  const over: Job[] = [];
  let query = `limit=${PAGE}`;
  for (;;) {
    const list = await get<JobList>(`/v1/jobs?${query}`);
    for (const job of list.jobs) {
      if (hasEnded(job)) over.push(job);
      else live.set(job.id, job);
    }
    if (list.next_after_live == null) return { live, over, before: list.next_before ?? null };
    query = `limit=${PAGE}&after_live=${list.next_after_live}`;
  }
}

/** Jobs that are over, by as few lists as there have to be. */
async function found(ids: number[]): Promise<Job[]> {
  const over = new Map<number, Job>();
  for (const id of ids.sort((a, b) => b - a)) {
    if (over.has(id)) continue;
    const list = await get<JobList>(`/v1/jobs?limit=${PAGE}&before=${id + 1}`);
    for (const job of list.jobs) over.set(job.id, job);
  }
  return ids.flatMap((id) => over.get(id) ?? []);
}

async function single(id: number): Promise<void> {
  const job = await get<JobDetail>(`/v1/jobs/${id}`);
  toldSince?.add(id);
  if (hasEnded(job)) settle(new Map(liveJobs.value), [job]);
  else if (!endedJobs.value.has(id)) liveJobs.value = new Map(liveJobs.value).set(id, job);
}

/** How many jobs have ended since the older ones were dropped. */
let grown = 0;

/** What is over stays over, whatever an older answer says. */
function settle(live: Map<number, Job>, over: Job[]): void {
  let ended: ReadonlyMap<number, Job> = endedJobs.value;
  if (over.length > 0) {
    ended = withJobs(ended, over);
    grown += ended.size - endedJobs.value.size;
  }
  for (const id of live.keys()) if (ended.has(id)) live.delete(id);
  batch(() => {
    liveJobs.value = live;
    endedJobs.value = ended;
    if (grown <= ENDED_MAX) return;
    grown = 0;
    const kept = [...ended].sort(([a], [b]) => b - a).slice(0, PAGE);
    endedJobs.value = new Map(kept);
    moreEnded.value = TOP;
    cursors.clear();
  });
}

/** Where the lists of jobs that are over in one phase go on; null if there are no more. */
const cursors = new Map<string, number | null>();

/** More of the jobs that are over, in one phase or in any, until some are new. */
export async function listEnded(phase: string | null): Promise<void> {
  const cursor = phase === null ? moreEnded.value : cursors.get(phase);
  for (let before = cursor === undefined ? TOP : cursor; before !== null; ) {
    const query = new URLSearchParams({ limit: `${PAGE}`, before: `${before}` });
    if (phase !== null) query.set("phase", phase);
    const list = await get<JobList>(`/v1/jobs?${query}`);
    const size = endedJobs.value.size;
    before = list.next_before ?? null;
    batch(() => {
      endedJobs.value = withJobs(endedJobs.value, list.jobs);
      if (phase === null) moreEnded.value = before;
      else cursors.set(phase, before);
    });
    if (endedJobs.value.size > size) return;
  }
}

function withJobs(known: ReadonlyMap<number, Job>, jobs: readonly Job[]): Map<number, Job> {
  const all = new Map(known);
  for (const job of jobs) all.set(job.id, job);
  return all;
}

function largest(numbers: readonly number[]): number {
  return numbers.reduce((most, number) => Math.max(most, number), 0);
}
