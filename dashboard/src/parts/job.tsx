// Small things about jobs that several pages show.

import type { Job, Phase } from "../api";
import { post } from "../client";
import { jobLook } from "../colour";
import { percent, sanitize } from "../format";
import { confirm } from "./dialog";

export function JobDot({ id }: { id: number }) {
  const look = jobLook(id);
  return <i class={`dot ${look.class}`} style={look.style} />;
}

export function JobLink({ id, name }: { id: number; name: string }) {
  return (
    <a class="job-link" href={`#/jobs/${id}`} title={sanitize(name)}>
      <JobDot id={id} />
      <span class="job-name">{sanitize(name)}</span>
    </a>
  );
}

export function PhaseBadge({ phase }: { phase: Phase }) {
  return <span class={`phase phase-${phase}`}>{phase}</span>;
}

export function Progress({ part }: { part: number | null | undefined }) {
  if (part == null) return <span class="soft">–</span>;
  return (
    <span class="progress">
      <span class="progress-track">
        <span class="progress-done" style={{ width: `${part * 100}%` }} />
      </span>
      <span class="progress-text">{percent(part)}</span>
    </span>
  );
}

type Verb = "cancel" | "pause" | "resume";

const TALK: Record<Verb, { verb: string; text: string }> = {
  cancel: { verb: "Cancel job", text: "It ends for good. Its logs and checkpoints stay." },
  pause: {
    verb: "Pause job",
    text: "Its program is told to save and leave; its GPUs go to others until it is resumed.",
  },
  resume: { verb: "Resume job", text: "It gets GPUs again as the next plan decides, and goes on from its checkpoint." },
};

export function askToAct(job: Job, verb: Verb): void {
  const { verb: label, text } = TALK[verb];
  const act = () => post(`/v1/jobs/${job.id}/${verb}`);
  const title = `${label.split(" ")[0]} ${sanitize(job.name)} (job ${job.id})?`;
  confirm({ title, text, verb: label, act, isDangerous: verb === "cancel" });
}

/** What can be done with a job now. */
export function JobActions({ job, isSmall }: { job: Job; isSmall?: boolean }) {
  if (job.ended_ms != null) return null;
  const verbs: Verb[] = [job.phase === "paused" ? "resume" : "pause", "cancel"];
  return (
    <span class="actions">
      {verbs.map((verb) => (
        <button
          // The keyboard stays where it was when pausing becomes resuming.
          key={verb === "cancel" ? 1 : 0}
          type="button"
          class={`${isSmall ? "small " : ""}${verb === "cancel" ? "quiet-danger" : ""}`}
          aria-label={`${verb} ${sanitize(job.name)} (job ${job.id})`}
          onClick={() => askToAct(job, verb)}
        >
          {verb[0]?.toUpperCase()}
          {verb.slice(1)}
        </button>
      ))}
    </span>
  );
}
