import { logOut, token } from "./session";

/** An answer that has not come by then does not come. */
const ANSWER_MAX_MS = 30_000;
/** Refusals that another try may change, apart from the server's own troubles. */
const PASSING: readonly number[] = [408, 429];

/** What the server refuses, in its own words. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** When it wants to be asked again. */
    readonly retryAfterMs: number,
  ) {
    super(message);
  }
}

/** Nobody answers, or not to the end. */
export class Away extends Error {
  constructor() {
    super("the server does not answer");
  }
}

/** Asks the server; a token that opens nothing any more ends the session. */
export async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set("authorization", `Bearer ${token.peek() ?? ""}`);
  const response = await fetch(path, { ...init, headers, cache: "no-store", credentials: "omit" });
  if (response.ok) return response;
  if (response.status === 401) logOut();
  const retryAfterMs = Number(response.headers.get("retry-after") ?? 0) * 1_000;
  throw new Refused(response.status, await complaint(response), retryAfterMs);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const late = AbortSignal.timeout(ANSWER_MAX_MS);
  const response = await ask(path, { signal: signal ? AbortSignal.any([signal, late]) : late });
  return (await response.json()) as T;
}

export async function post<T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T | null> {
  const init: RequestInit = { method: "POST" };
  if (signal) init.signal = signal;
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { "content-type": "application/json" };
  }
  const response = await ask(path, init);
  return response.status === 204 ? null : ((await response.json()) as T);
}

/** Why an answer is none, in the words of the server. */
export async function complaint(response: Response): Promise<string> {
  try {
    const failure = (await response.json()) as { error: { message: string } };
    return failure.error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

/** Whether the same would be refused again. */
export function isFinal(error: unknown): boolean {
  return error instanceof Refused && error.status < 500 && !PASSING.includes(error.status);
}

/** Milliseconds that the server asks for. */
export function retryAfter(error: unknown): number {
  return error instanceof Refused ? error.retryAfterMs : 0;
}

/** Whether it failed because nobody answers. */
export function isAway(error: unknown): boolean {
  // What fetch fails with when there is no connection, and what a limit of time ends it with.
  return error instanceof Away || error instanceof TypeError || (error as Error | null)?.name === "TimeoutError";
}

/** What to tell people of something that went wrong. */
export function reason(error: unknown): string {
  if (error instanceof Refused) return error.message;
  return isAway(error) ? new Away().message : String(error);
}
