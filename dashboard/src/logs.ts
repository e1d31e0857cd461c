// Logs as they come: text and nothing else.

import { effect, signal } from "@preact/signals";
import type { LogPiece } from "./api";
import { isFinal, reason } from "./client";
import { listen, type Message } from "./stream";
import { isWatched } from "./watched";

/** What is kept, in characters and in lines; older lines go, so many of them at once. */
const KEPT_MAX = 64 * 1024 * 1024;
const LINES_MAX = 200_000;
const KEPT_SHARE = 0.9;
/** Of each replica, to begin with. */
const TAIL = 5_000;
/** A longer line is kept in pieces. */
const LINE_MAX = 64 * 1024;
/** Between two looks at what has come. */
const FLUSH_MS = 100;

/** Escape sequences of terminals. */
// biome-ignore lint/complexity/useRegexLiterals: a literal must not hold control characters
const SEQUENCES = new RegExp(String.raw`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])`, "g");
/** What would show as nothing, or turn what follows around. */
// biome-ignore lint/complexity/useRegexLiterals: the same
const UNSEEN = new RegExp(String.raw`[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]`, "g");

export const plain = (line: string) => line.replace(SEQUENCES, "").replace(UNSEEN, "");

export type LogState = { is: "reading" } | { is: "ended" } | { is: "waiting" | "refused"; why: string };

interface Writer {
  /** Where its log goes on. */
  position: string;
  /** A line without its end. */
  unfinished: string;
}

/** What a job writes, from some lines back, for as long as it does. */
export class LogFeed {
  /** Counts what has come. */
  readonly version = signal(0);
  readonly state = signal<LogState>({ is: "reading" });
  /** Lines that have their end. */
  readonly lines: string[] = [];
  /** How many are not kept any more. */
  dropped = 0;
  private size = 0;
  private readonly writers = new Map<number, Writer>();
  private flushing: ReturnType<typeof setTimeout> | undefined;

  /** Of one replica, or of all. */
  constructor(
    private readonly job: number,
    private readonly replica: string,
  ) {}

  /** Reads while somebody looks, and goes on where it was, until what it returns is called. */
  follow(): () => void {
    return effect(() => {
      if (!isWatched.value || this.state.peek().is === "ended") return;
      const stop = new AbortController();
      void listen(
        {
          path: () => this.path(),
          opened: () => {
            this.state.value = { is: "reading" };
          },
          heard: (messages) => this.heard(messages),
          lost: (problem) => {
            this.state.value = { is: isFinal(problem) ? "refused" : "waiting", why: reason(problem) };
          },
        },
        stop.signal,
      );
      return () => stop.abort();
    });
  }

  /** What replicas are about to write: lines that may still be written over. */
  unfinished(): string[] {
    const begun = [...this.writers].filter(([, { unfinished }]) => unfinished !== "");
    return begun.map(([replica, { unfinished }]) => this.line(replica, unfinished));
  }

  private path(): string {
    const query = new URLSearchParams();
    if (this.replica) query.set("replica", this.replica);
    const after = [...this.writers].map(([replica, { position }]) => `${replica}.${position}`);
    if (after.length > 0) query.set("after", after.join(","));
    else query.set("tail", `${TAIL}`);
    return `/v1/jobs/${this.job}/logs/stream?${query}`;
  }

  private heard(messages: readonly Message[]): boolean {
    const isEnd = messages.some(({ event }) => event === "end");
    for (const { event, data } of messages) if (event === "message") this.take(JSON.parse(data) as LogPiece);
    if (isEnd) {
      for (const [replica, writer] of this.writers) {
        if (writer.unfinished !== "") this.add(replica, writer.unfinished);
        writer.unfinished = "";
      }
      this.state.value = { is: "ended" };
    }
    this.shorten();
    this.flushing ??= setTimeout(() => {
      this.flushing = undefined;
      this.version.value += 1;
    }, FLUSH_MS);
    return isEnd;
  }

  private take({ replica, text, position }: LogPiece): void {
    const begun = this.writers.get(replica)?.unfinished ?? "";
    const lines = (begun + text).split("\n");
    let unfinished = lastWritten(lines.pop() ?? "");
    for (const line of lines) this.add(replica, line);
    while (unfinished.length > LINE_MAX) {
      const end = isCut(unfinished, LINE_MAX) ? LINE_MAX - 1 : LINE_MAX;
      this.add(replica, unfinished.slice(0, end));
      unfinished = unfinished.slice(end);
    }
    this.writers.set(replica, { position, unfinished });
  }

  private add(replica: number, line: string): void {
    const shown = this.line(replica, line);
    this.lines.push(shown);
    this.size += shown.length;
  }

  private line(replica: number, text: string): string {
    const shown = lastWritten(text).replace("\r", "");
    return this.replica ? shown : `${replica}| ${shown}`;
  }

  /** Drops many lines at once: to drop one costs as much. */
  private shorten(): void {
    if (this.lines.length <= LINES_MAX && this.size <= KEPT_MAX) return;
    let gone = 0;
    const isTooMuch = () => this.lines.length - gone > LINES_MAX * KEPT_SHARE || this.size > KEPT_MAX * KEPT_SHARE;
    while (gone < this.lines.length - 1 && isTooMuch()) {
      this.size -= this.lines[gone]?.length ?? 0;
      gone += 1;
    }
    this.lines.splice(0, gone);
    this.dropped += gone;
  }
}

/** What a terminal would show of a line in which programs went back to its start, as those with progress bars do. */
function lastWritten(line: string): string {
  // A return at the end has nothing to show instead yet.
  return line.slice(line.lastIndexOf("\r", line.length - 2) + 1);
}

/** Whether a character of two units would be cut in between. */
function isCut(text: string, at: number): boolean {
  const before = text.charCodeAt(at - 1);
  return before >= 0xd800 && before < 0xdc00;
}

/** Lines that have some text in them, each of which is looked at once. */
export class Hits {
  /** Of all lines that ever were. */
  private seen = 0;
  private readonly numbers: number[] = [];

  constructor(
    private readonly feed: LogFeed,
    private readonly wanted: string,
  ) {}

  /** Where they are among the lines that are kept. */
  look(): { count: number; at: (idx: number) => number } {
    const { lines, dropped } = this.feed;
    for (let idx = Math.max(0, this.seen - dropped); idx < lines.length; idx++) {
      if (isHit(lines[idx] ?? "", this.wanted)) this.numbers.push(dropped + idx);
    }
    this.seen = dropped + lines.length;
    const first = this.numbers.findIndex((number) => number >= dropped);
    this.numbers.splice(0, first < 0 ? this.numbers.length : first);
    return { count: this.numbers.length, at: (idx) => (this.numbers[idx] ?? 0) - dropped };
  }
}

export const isHit = (line: string, wanted: string) => plain(line).toLowerCase().includes(wanted);
