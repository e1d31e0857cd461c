// Logs as they come: text and nothing else.

import { signal } from "@preact/signals";
import { ask, reason } from "./client";
import { chunks, pause } from "./stream";

/** What is kept, in characters and in lines; older lines go. */
const KEPT_MAX = 64 * 1024 * 1024;
const LINES_MAX = 200_000;
/** Between two looks at what has come. */
const FLUSH_MS = 100;

/** Escape sequences of terminals. */
// biome-ignore lint/complexity/useRegexLiterals: a literal must not hold control characters
const SEQUENCES = new RegExp(String.raw`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])`, "g");
/** What would show as nothing, or turn what follows around. */
// biome-ignore lint/complexity/useRegexLiterals: the same
const UNSEEN = new RegExp(String.raw`[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]`, "g");

export const plain = (line: string) => line.replace(SEQUENCES, "").replace(UNSEEN, "");

/** What a job writes, from some lines back, for as long as it does. */
export class LogFeed {
  readonly lines = signal<readonly string[]>([]);
  readonly state = signal<"reading" | "ended" | string>("reading");
  readonly dropped = signal(0);
  private kept: string[] = [];
  private size = 0;
  private readonly stop = new AbortController();

  constructor(job: number, replica: string) {
    void this.read(job, replica);
  }

  close(): void {
    this.stop.abort();
  }

  private async read(job: number, replica: string): Promise<void> {
    const query = new URLSearchParams({ follow: "true", tail: "5000" });
    if (replica) query.set("replica", replica);
    const flushing = setInterval(() => this.flush(), FLUSH_MS);
    while (!this.stop.signal.aborted) {
      try {
        const response = await ask(`/v1/jobs/${job}/logs?${query}`, { signal: this.stop.signal });
        this.clear();
        for await (const line of chunks(response, "\n")) this.add(line);
        this.state.value = "ended";
        break;
      } catch (problem) {
        if (this.stop.signal.aborted) break;
        this.state.value = reason(problem);
        // A server that comes back tells the last lines again.
        await pause(1_000, this.stop.signal);
      }
    }
    clearInterval(flushing);
    this.flush();
  }

  private clear(): void {
    this.kept = [];
    this.size = 0;
    this.dropped.value = 0;
    this.state.value = "reading";
  }

  private add(line: string): void {
    this.kept.push(line);
    this.size += line.length;
    let gone = 0;
    while (this.kept.length - gone > 1 && (this.size > KEPT_MAX || this.kept.length - gone > LINES_MAX)) {
      this.size -= this.kept[gone]?.length ?? 0;
      gone += 1;
    }
    if (gone > 0) {
      this.kept.splice(0, gone);
      this.dropped.value += gone;
    }
  }

  private flush(): void {
    if (this.lines.value.length !== this.kept.length || this.lines.value.at(-1) !== this.kept.at(-1)) {
      this.lines.value = this.kept.slice();
    }
  }
}
