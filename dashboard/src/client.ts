import { logOut, token } from "./session";

/** What the server refuses, in its own words. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Asks the server; a token that opens nothing any more ends the session. */
export async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set("authorization", `Bearer ${token.value ?? ""}`);
  const response = await fetch(path, { ...init, headers, cache: "no-store", credentials: "omit" });
  if (response.ok) return response;
  if (response.status === 401) logOut();
  throw new Refused(response.status, await complaint(response));
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await ask(path, signal ? { signal } : {});
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

/** What to tell people of something that went wrong. */
export function reason(error: unknown): string {
  if (error instanceof Refused) return error.message;
  return error instanceof TypeError ? "the server does not answer" : String(error);
}
