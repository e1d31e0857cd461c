// Changes of a what-if: in the address, so that a reload or a link asks the same, and in words.

import type { Change } from "./api";
import { plural, sanitize } from "./format";
import { liveJobs } from "./live";
import { refine, route } from "./router";

/** What the address asks for, or why that is no question. */
export function chosen(): { changes: Change[]; problem: string } {
  const given = route.value.query.get("changes") ?? "[]";
  const problem = "This link asks for no changes that this page knows: expected links that it made itself.";
  try {
    const changes: unknown = JSON.parse(given);
    return Array.isArray(changes) && changes.every(isChange) ? { changes, problem: "" } : { changes: [], problem };
  } catch {
    return { changes: [], problem };
  }
}

export function choose(changes: readonly Change[]): void {
  refine({ changes: changes.length > 0 ? JSON.stringify(changes) : "" });
}

/** A change in a few words. */
export function told(change: Change): string {
  const nameOf = (id: number) => `${sanitize(liveJobs.value.get(id)?.name ?? "job")} (${id})`;
  if ("submit" in change) {
    const { trains_like: like, replicas_max: most } = change.submit;
    const what = "job" in like ? nameOf(like.job) : like.application;
    return `a job like ${what}${most == null ? "" : `, up to ${plural(most, "GPU")}`}`;
  }
  if ("add_nodes" in change) {
    const { count, gpus } = change.add_nodes;
    return `${count} more node${count === 1 ? "" : "s"} of ${plural(gpus, "GPU")}`;
  }
  if ("drain" in change) return `without ${sanitize(change.drain.node)}`;
  if ("policy" in change) return `${change.policy.name} decides`;
  if ("cancel" in change) return `without ${nameOf(change.cancel.job)}`;
  if ("pause" in change) return `${nameOf(change.pause.job)} paused`;
  return `${nameOf(change.resume.job)} resumed`;
}

type Fields = Record<string, unknown>;

const isNumber = (value: unknown) => typeof value === "number";
const isText = (value: unknown) => typeof value === "string";
const isJob = ({ job }: Fields) => isNumber(job);

/** What has to be there for a change to be told; the server judges the rest. */
const KINDS: Record<string, (given: Fields) => boolean> = {
  submit: ({ trains_like: like }) => isObject(like) && (isNumber(like.job) || isText(like.application)),
  add_nodes: ({ count, gpus }) => isNumber(count) && isNumber(gpus),
  drain: ({ node }) => isText(node),
  policy: ({ name }) => isText(name),
  cancel: isJob,
  pause: isJob,
  resume: isJob,
};

function isChange(value: unknown): value is Change {
  if (!isObject(value)) return false;
  const [[kind, given] = ["", null], ...others] = Object.entries(value);
  return others.length === 0 && isObject(given) && (KINDS[kind]?.(given) ?? false);
}

function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
