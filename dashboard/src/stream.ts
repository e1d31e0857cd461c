// Server-sent events by fetch: an EventSource could not send the token.

import { Away, ask, isFinal, retryAfter } from "./client";

const RETRY_FIRST_MS = 250;
const RETRY_MAX_MS = 5_000;
/** The server says something every 15 s: one that does not is gone, whatever the network thinks. */
const SILENCE_MAX_MS = 40_000;

export interface Message {
  event: string;
  data: string;
}

export interface Listener {
  /** Where to listen, and from when on. */
  path(): string;
  /** Messages can be heard from now on. */
  opened?(): void;
  /** What came at once; whether it was the last. */
  heard(messages: readonly Message[]): boolean;
  /** It tries again, unless that would change nothing. */
  lost(problem: unknown, wasOpen: boolean): void;
}

/** Listens until it is told to stop, has heard the last or is refused for good, whenever the server is there. */
export async function listen(listener: Listener, stop: AbortSignal): Promise<void> {
  let wait = RETRY_FIRST_MS;
  while (!stop.aborted) {
    let problem: unknown = new Away();
    let isOpen = false;
    const opened = () => {
      isOpen = true;
      listener.opened?.();
    };
    try {
      for await (const messages of batches(listener.path(), opened, stop)) {
        if (listener.heard(messages)) return;
        wait = RETRY_FIRST_MS;
      }
    } catch (caught) {
      problem = caught;
    }
    if (stop.aborted) return;
    listener.lost(problem, isOpen);
    if (isFinal(problem)) return;
    // Not all at once: every page has lost the same server.
    await pause(Math.max(wait * (0.5 + Math.random()), retryAfter(problem)), stop);
    wait = Math.min(wait * 2, RETRY_MAX_MS);
  }
}

/** Messages as they come, those together that came together; none are a sign of life. */
async function* batches(path: string, opened: () => void, stop: AbortSignal): AsyncGenerator<Message[]> {
  const silence = new AbortController();
  const fallSilent = () => silence.abort(new Away());
  let timer = setTimeout(fallSilent, SILENCE_MAX_MS);
  try {
    const response = await ask(path, { signal: AbortSignal.any([stop, silence.signal]) });
    opened();
    for await (const blocks of blocksOf(response)) {
      clearTimeout(timer);
      timer = setTimeout(fallSilent, SILENCE_MAX_MS);
      const messages = blocks.flatMap((block) => message(block) ?? []);
      // What a server says to everybody who comes is no sign that it will stay.
      if (messages.length > 0 || blocks.some((block) => block.startsWith(":"))) yield messages;
    }
  } finally {
    clearTimeout(timer);
  }
}

function message(block: string): Message | null {
  let event = "message";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length > 0 ? { event, data: data.join("\n") } : null;
}

/** What stands between empty lines. What comes after the last one was cut off. */
async function* blocksOf(response: Response): AsyncGenerator<string[]> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  // A block may come in many pieces: joining them one by one would take time by its square.
  let pieces: string[] = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      if (!value.includes("\n")) {
        pieces.push(value);
        continue;
      }
      const blocks = [...pieces, value].join("").split("\n\n");
      pieces = [blocks.pop() ?? ""];
      yield blocks;
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

export function pause(ms: number, stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      stop.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    stop.addEventListener("abort", end);
  });
}
