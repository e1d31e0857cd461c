// `make bench`: what the dashboard takes with 1,000 live and 100,000 finished jobs. It prints, and asserts no time.

import { execFileSync } from "node:child_process";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { type Browser, type CDPSession, expect, test } from "@playwright/test";
import type { ClusterStatus } from "../src/api";
import { Cluster, open } from "./cluster";

const LIVE = 1_000;
const LOADS = 7;
const UPDATES = 30;
const WATCHED_S = 20;
const EVENTS_PER_S = 10;
const BINARIES = resolve(process.env.POLLUX_BINARIES ?? "../target/debug");

test("measurements", async ({ browser }) => {
  const cluster = await crowded();
  try {
    for (const hash of ["/cluster", "/jobs"]) await paint(browser, cluster, hash);
    await updates(browser, cluster);
    for (const hash of ["/cluster", "/jobs"]) await work(browser, cluster, hash);
  } finally {
    await cluster.end();
  }
});

async function crowded(): Promise<Cluster> {
  const prepare = (state: string) =>
    execFileSync("cargo", ["xtask", "crowd", join(BINARIES, "pollux"), state], { stdio: "inherit", cwd: ".." });
  const cluster = await Cluster.start(["--slots", "8", "--round-interval", "30"], prepare);
  const submit = () => cluster.submit({ name: "active", command: ["sleep", "3600"], working_dir: "/" });
  for (let idx = 0; idx < LIVE; idx += 20) await Promise.all(Array.from({ length: 20 }, submit));
  return cluster;
}

/** From the first byte asked for to something to see, and to numbers in it. */
async function paint(browser: Browser, cluster: Cluster, hash: string): Promise<void> {
  const [first, filled]: [number[], number[]] = [[], []];
  for (let idx = 0; idx < LOADS; idx++) {
    const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
    await context.addInitScript((token) => sessionStorage.setItem("pollux-token", token), cluster.token);
    const page = await context.newPage();
    await page.goto(`${cluster.url}/#${hash}`);
    await expect(page.locator("main[aria-busy=false]")).toBeVisible();
    const told = await page.evaluate(() => {
      const [paint] = performance.getEntriesByName("first-contentful-paint");
      const [data] = performance.getEntriesByType("resource").filter(({ name }) => name.includes("/v1/jobs"));
      return { paint: paint?.startTime ?? Number.NaN, data: (data as PerformanceResourceTiming).responseEnd };
    });
    first.push(told.paint);
    filled.push(told.data);
    await context.close();
  }
  print(`${hash}: first paint`, first, "ms");
  print(`${hash}: all live jobs are there`, filled, "ms");
}

/** From an event's own time to the moment that the page shows it. */
async function updates(browser: Browser, cluster: Cluster): Promise<void> {
  const page = await browser.newPage();
  await open(page, cluster, "/jobs?q=fresh&sort=-id");
  const delays: number[] = [];
  for (let idx = 0; idx < UPDATES; idx++) {
    const name = `fresh-${idx}`;
    // Watched before it is submitted: whoever begins later would take the next change for this one.
    await page.evaluate((wanted) => {
      const shown = new Promise<number>((resolve) => {
        const look = () => {
          if (!document.querySelector("main")?.textContent?.includes(wanted)) return;
          observer.disconnect();
          resolve(Date.now());
        };
        const observer = new MutationObserver(look);
        observer.observe(document.body, { childList: true, subtree: true, characterData: true });
      });
      Object.assign(globalThis, { shown });
    }, name);
    const id = await cluster.submit({ name, command: ["true"], replicas_min: 64, replicas: 64 });
    const shown = await page.evaluate(() => (globalThis as unknown as { shown: Promise<number> }).shown);
    delays.push(shown - (await cluster.job(id)).submitted_ms);
    await cluster.post(`/v1/jobs/${id}/cancel`);
  }
  await page.close();
  print("a job that was submitted is shown after", delays, "ms");
}

/** What the page's own thread does while things happen. */
async function work(browser: Browser, cluster: Cluster, hash: string): Promise<void> {
  const page = await browser.newPage();
  await open(page, cluster, hash);
  // It counts from when it is enabled.
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  const before = await busy(session);
  const [began, events] = [Date.now(), (await cluster.get<ClusterStatus>("/v1/cluster")).last_event];
  let turn = 0;
  while (Date.now() - began < WATCHED_S * 1_000) {
    // It is submitted, cancelled and over: three events.
    const id = await cluster.submit({ name: "brief", command: ["true"], replicas_min: 64, replicas: 64 });
    await cluster.post(`/v1/jobs/${id}/cancel`);
    turn += 1;
    await sleep(Math.max(0, began + (turn * 3_000) / EVENTS_PER_S - Date.now()));
  }
  const seconds = (Date.now() - began) / 1_000;
  const [after, last] = [await busy(session), (await cluster.get<ClusterStatus>("/v1/cluster")).last_event];
  const share = (name: string) =>
    `${((((after.get(name) ?? 0) - (before.get(name) ?? 0)) / seconds) * 100).toFixed(1)}%`;
  const rate = ((last - events) / seconds).toFixed(1);
  console.log(
    `  ${hash}: at ${rate} events/s, scripts take ${share("ScriptDuration")} of a core, all tasks ${share("TaskDuration")}`,
  );
  await page.close();
}

async function busy(session: CDPSession): Promise<Map<string, number>> {
  const { metrics } = await session.send("Performance.getMetrics");
  return new Map(metrics.map(({ name, value }) => [name, value]));
}

function print(what: string, values: number[], unit: string): void {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (share: number) => (sorted[Math.floor((sorted.length - 1) * share)] ?? Number.NaN).toFixed(0);
  console.log(`  ${what}: median ${at(0.5)} ${unit}, most ${at(1)} ${unit} of ${sorted.length}`);
}
