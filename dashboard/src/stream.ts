// Server-sent events by fetch: an EventSource could not send the token.

import type { Event } from "./api";
import { ask, Refused } from "./client";

const RETRY_FIRST_MS = 250;
const RETRY_MAX_MS = 5_000;

export interface Listener {
  event(event: Event): void;
  /** Events can be heard from now on; what happened before is to be asked for. */
  opened(): void;
  lost(): void;
}

/** Listens until it is told to stop, and goes on where it was whenever the server is back. */
export async function listen(listener: Listener, signal: AbortSignal): Promise<void> {
  let last: number | null = null;
  let wait = RETRY_FIRST_MS;
  while (!signal.aborted) {
    try {
      const headers: Record<string, string> = last === null ? {} : { "last-event-id": `${last}` };
      const response = await ask("/v1/events/stream", { signal, headers });
      listener.opened();
      wait = RETRY_FIRST_MS;
      for await (const data of messages(response)) {
        const event = JSON.parse(data) as Event;
        last = event.sequence;
        listener.event(event);
      }
    } catch (error) {
      if (signal.aborted || (error instanceof Refused && error.status === 401)) return;
    }
    listener.lost();
    await pause(wait, signal);
    wait = Math.min(wait * 2, RETRY_MAX_MS);
  }
}

/** The data of each message. */
async function* messages(response: Response): AsyncGenerator<string> {
  for await (const message of chunks(response, "\n\n")) {
    const data = message.split("\n").flatMap((line) => (line.startsWith("data: ") ? [line.slice(6)] : []));
    if (data.length > 0) yield data.join("\n");
  }
}

/** What stands between marks, as it comes; what follows the last one is told at the end. */
export async function* chunks(response: Response, mark: string): AsyncGenerator<string> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  // A line may come in many pieces: joining them one by one would take time by its square.
  let pieces: string[] = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      if (!value.includes("\n")) {
        pieces.push(value);
        continue;
      }
      const parts = [...pieces, value].join("").split(mark);
      pieces = [parts.pop() ?? ""];
      yield* parts;
    }
    const rest = pieces.join("");
    if (rest !== "") yield rest;
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

export function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
