import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { test as base, expect, type Page } from "@playwright/test";
import type { Job, JobList, JobSpec } from "../src/api";

const BINARIES = resolve(process.env.POLLUX_BINARIES ?? "../target/debug");
const PATIENCE_MS = 30_000;

/** A real `pollux up` with eight slots, and real trainings on it. */
export class Cluster {
  readonly folder = mkdtempSync(join(tmpdir(), "pollux-dashboard-"));
  token = "";
  private daemon: ChildProcess | null = null;

  private constructor(
    readonly port: number,
    private readonly options: readonly string[],
  ) {}

  /** `prepare` may fill its state folder before. */
  static async start(
    options: readonly string[] = ["--nodes", "2x4", "--round-interval", "1"],
    prepare: (state: string) => void = () => {},
  ): Promise<Cluster> {
    const cluster = new Cluster(await freePort(), options);
    prepare(cluster.state);
    await cluster.up();
    return cluster;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get state(): string {
    return join(this.folder, "state");
  }

  async up(): Promise<void> {
    const listen = ["--listen", `127.0.0.1:${this.port}`, "--grace", "3"];
    const args = ["up", "--state", this.state, ...listen, ...this.options];
    const daemon = spawn(join(BINARIES, "pollux"), args, { stdio: ["ignore", "ignore", "pipe"] });
    this.daemon = daemon;
    let talk = "";
    daemon.stderr.on("data", (piece) => {
      talk += piece;
    });
    await until(`pollux up (${talk})`, async () => existsSync(join(this.state, "server.json")) && this.isUp());
    this.token = readFileSync(join(this.state, "token"), "utf8").trim();
  }

  /** Ends the scheduler, not the jobs. */
  async down(): Promise<void> {
    const daemon = this.daemon;
    if (!daemon || daemon.exitCode !== null) return;
    daemon.kill("SIGTERM");
    await once(daemon, "exit");
  }

  /** Ends everything. */
  async end(): Promise<void> {
    for (const job of await this.live()) await this.post(`/v1/jobs/${job.id}/cancel`);
    await until("the end of all jobs", async () => (await this.live()).length === 0);
    await this.down();
    rmSync(this.folder, { recursive: true, force: true });
  }

  get process(): number {
    return this.daemon?.pid ?? 0;
  }

  async get<T>(path: string): Promise<T> {
    const response = await fetch(this.url + path, { headers: { authorization: `Bearer ${this.token}` } });
    expect(response.ok, `${path}: ${response.status}`).toBe(true);
    return (await response.json()) as T;
  }

  async post(path: string, body?: unknown): Promise<Response> {
    const headers = { authorization: `Bearer ${this.token}`, "content-type": "application/json" };
    return fetch(this.url + path, { method: "POST", headers, body: body === undefined ? null : JSON.stringify(body) });
  }

  async submit(request: Partial<JobSpec> & { command: string[] }): Promise<number> {
    const response = await this.post("/v1/jobs", { working_dir: this.folder, ...request });
    expect(response.status, await response.clone().text()).toBe(201);
    return ((await response.json()) as Job).id;
  }

  /** A training that takes its time as told by a throughput model, so that slots without GPUs mean something. */
  async train(name: string, epochs: number, pace = "good"): Promise<number> {
    const command = trainer(epochs, pace);
    return this.submit({ name, command, replicas_max: 8, work: { epochs } });
  }

  async live(): Promise<Job[]> {
    const list = await this.get<JobList>("/v1/jobs?limit=1000");
    return list.jobs.filter((job) => job.ended_ms == null);
  }

  async job(id: number): Promise<Job> {
    return this.get<Job>(`/v1/jobs/${id}`);
  }

  private async isUp(): Promise<boolean> {
    try {
      return (await fetch(`${this.url}/healthz`)).ok;
    } catch {
      return false;
    }
  }
}

export function trainer(epochs: number, pace: string): string[] {
  return [join(BINARIES, "pollux-trainer"), "--until", "progress", "--epochs", `${epochs}`, "--pace", pace];
}

export async function until(what: string, look: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + PATIENCE_MS;
  while (!(await look())) {
    if (Date.now() > deadline) throw new Error(`${what} did not happen`);
    await sleep(50);
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  server.close();
  await once(server, "close");
  return typeof address === "object" && address ? address.port : 0;
}

/** Opens a page of the dashboard as somebody who is logged in. */
export async function open(page: Page, cluster: Cluster, hash = "/cluster"): Promise<void> {
  await page.goto(`${cluster.url}/#token=${cluster.token}`);
  await expect(page.getByRole("status").filter({ hasText: "live" })).toBeVisible();
  await page.evaluate((to) => {
    location.hash = to;
  }, hash);
  await expect(page.locator("main[aria-busy=false]")).toBeVisible();
}

/** Whatever the page does that it must not: errors, refused markup, dialogs, words with other hosts. */
export function misdeeds(page: Page, cluster: Cluster): string[] {
  const seen: string[] = [];
  page.on("pageerror", (error) => seen.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    seen.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("console", (message) => {
    const text = message.text();
    if (/Content Security Policy|TrustedHTML|Trusted Type/.test(text)) seen.push(`refused: ${text}`);
  });
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol.startsWith("http") && url.origin !== cluster.url) seen.push(`request: ${request.url()}`);
  });
  return seen;
}

export const test = base.extend<{ seen: string[] }, { cluster: Cluster }>({
  cluster: [
    // biome-ignore lint/correctness/noEmptyPattern: that is how Playwright is told that nothing else is needed
    async ({}, use) => {
      const cluster = await Cluster.start();
      await use(cluster);
      await cluster.end();
    },
    { scope: "worker" },
  ],
  seen: [
    async ({ page, cluster }, use) => {
      const seen = misdeeds(page, cluster);
      await use(seen);
      expect(seen).toEqual([]);
    },
    { auto: true },
  ],
});

export { expect };
