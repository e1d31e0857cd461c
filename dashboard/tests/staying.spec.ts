// A page that stays open for days: in the background, beside others, and with a server that is not always well.

import type { Page } from "@playwright/test";
import { Cluster, expect, open, test, until } from "./cluster";

const WAITS = { command: ["true"], replicas: 64, replicas_min: 64 };

async function setHidden(page: Page, hidden: boolean): Promise<void> {
  await page.evaluate((value) => {
    Object.defineProperty(document, "hidden", { value, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);
}

test("a tab in the background holds no connections, and catches up when it is seen again", async ({
  page,
  cluster,
}) => {
  const id = await cluster.submit({ name: "sleeper", command: ["sleep", "1000"], flexibility: "rigid" });
  await page.clock.install();
  await open(page, cluster, `/jobs/${id}`);
  await expect(page.getByRole("heading", { name: /sleeper/ })).toBeVisible();
  const [left, asked]: [string[], string[]] = [[], []];
  page.on("requestfailed", (request) => left.push(new URL(request.url()).pathname));
  await setHidden(page, true);
  await page.clock.runFor(6_000);
  await expect.poll(() => left).toEqual(expect.arrayContaining(["/v1/events/stream", `/v1/jobs/${id}/logs/stream`]));
  page.on("request", (request) => asked.push(request.url()));
  const other = await cluster.submit({ name: "meanwhile", ...WAITS });
  await page.clock.runFor(30_000);
  expect(asked).toEqual([]);
  await setHidden(page, false);
  await page.getByRole("link", { name: "Jobs", exact: true }).click();
  await expect(page.getByRole("row", { name: /meanwhile/ })).toBeVisible();
  for (const job of [id, other]) await cluster.post(`/v1/jobs/${job}/cancel`);
  await expect(page.getByRole("row", { name: /meanwhile/ })).toBeHidden();
});

test("a server that falls silent without a word is left, and found again", async ({ page, cluster }) => {
  await page.clock.install();
  await open(page, cluster);
  process.kill(cluster.process, "SIGSTOP");
  try {
    await page.clock.runFor(45_000);
    await expect(page.getByRole("status").filter({ hasText: /connecting/ })).toBeVisible();
  } finally {
    process.kill(cluster.process, "SIGCONT");
  }
  await expect(async () => {
    await page.clock.runFor(10_000);
    await expect(page.getByRole("status").filter({ hasText: "live" })).toBeVisible({ timeout: 500 });
  }).toPass();
});

test("what a server refuses is told in its words until it does not", async ({ page, cluster }) => {
  await open(page, cluster);
  const failure = { error: { code: "too_fast", message: "too many requests: try again in 1 s" } };
  await page.route("**/v1/plan", (route) => route.fulfill({ status: 429, json: failure }));
  await expect(page.getByRole("alert")).toContainText("too many requests");
  await expect(page.getByText("The server does not answer")).toBeHidden();
  await page.unroute("**/v1/plan");
  await expect(page.getByRole("alert")).toBeHidden();
});

test("a job that does not exist is asked for once", async ({ page, cluster }) => {
  const [asked, looks]: [string[], string[]] = [[], []];
  page.on("request", (request) => {
    const { pathname } = new URL(request.url());
    if (pathname === "/v1/jobs/99999999") asked.push(pathname);
    if (pathname === "/v1/cluster" && asked.length > 0) looks.push(pathname);
  });
  await open(page, cluster, "/jobs/99999999");
  await expect(page.getByText(/99999999/).last()).toBeVisible();
  await expect.poll(() => looks.length).toBeGreaterThan(2);
  expect(asked.length).toBe(1);
});

test("the newest of a job's many events are shown, and those that come are added", async ({ page, cluster }) => {
  test.setTimeout(120_000);
  const id = await cluster.submit({ name: "restless", ...WAITS });
  for (let idx = 0; idx < 255; idx++) {
    await cluster.post(`/v1/jobs/${id}/pause`);
    await cluster.post(`/v1/jobs/${id}/resume`);
  }
  await open(page, cluster, `/jobs/${id}`);
  const events = page.getByRole("list", { name: "Events" }).getByRole("listitem");
  await expect(events.first()).toContainText("resumed by its user");
  await cluster.post(`/v1/jobs/${id}/pause`);
  await expect(events.first()).toContainText("paused by its user");
  await cluster.post(`/v1/jobs/${id}/cancel`);
  await expect(events.first()).toContainText("cancelled");
});

test("what happens to one job or another sends no question of a job's page a second time", async ({
  page,
  cluster,
}) => {
  const id = await cluster.submit({ name: "asked", ...WAITS });
  await open(page, cluster, `/jobs/${id}`);
  await expect(page.getByRole("heading", { name: /asked/ })).toBeVisible();
  const broken: string[] = [];
  page.on("requestfailed", (request) => broken.push(request.url()));
  const others: number[] = [];
  for (let idx = 0; idx < 10; idx++) {
    await cluster.post(`/v1/jobs/${id}/${idx % 2 === 0 ? "pause" : "resume"}`);
    others.push(await cluster.submit({ name: "other", ...WAITS }));
  }
  await cluster.post(`/v1/jobs/${id}/pause`);
  await expect(page.locator(".toolbar .phase")).toHaveText("paused");
  expect(broken).toEqual([]);
  for (const job of [id, ...others]) await cluster.post(`/v1/jobs/${job}/cancel`);
});

test("an answer that comes late takes back nothing that was told since", async ({ page, cluster }) => {
  const ending = await cluster.submit({ name: "ending", ...WAITS });
  await open(page, cluster, "/jobs");
  await expect(page.getByRole("row", { name: /ending/ })).toBeVisible();
  let release = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  let isHeld = false;
  await page.route("**/v1/jobs?limit=1000", async (route) => {
    const response = await route.fetch();
    isHeld = true;
    await released;
    await route.fulfill({ response });
  });
  await until("a list", async () => isHeld);
  await cluster.post(`/v1/jobs/${ending}/cancel`);
  await cluster.submit({ name: "coming", ...WAITS });
  await expect(page.getByRole("row", { name: /ending/ })).toBeHidden();
  await expect(page.getByRole("row", { name: /coming/ })).toBeVisible();
  // Whatever the list would take back is noticed, however soon the next one mends it.
  await page.evaluate(() => {
    const flickers: string[] = [];
    Object.assign(globalThis, { flickers });
    new MutationObserver(() => {
      const text = document.querySelector("main")?.textContent ?? "";
      if (text.includes("ending") || !text.includes("coming")) flickers.push(text);
    }).observe(document.body, { childList: true, subtree: true, characterData: true });
  });
  const answered = page.waitForResponse("**/v1/jobs?limit=1000");
  release();
  await answered;
  await cluster.submit({ name: "last", ...WAITS });
  await expect(page.getByRole("row", { name: /last/ })).toBeVisible();
  expect(await page.evaluate(() => (globalThis as unknown as { flickers: string[] }).flickers)).toEqual([]);
  for (const job of await cluster.live()) await cluster.post(`/v1/jobs/${job.id}/cancel`);
});

test("jobs that are over are all found, though an old one ended before one's eyes", async ({ browser }) => {
  test.setTimeout(120_000);
  // More than a page of them, on a cluster that has no others.
  const cluster = await Cluster.start();
  const page = await browser.newPage();
  try {
    const old = await cluster.submit({ name: "old", ...WAITS });
    for (let idx = 0; idx < 1_050; idx += 25) {
      await Promise.all(
        Array.from({ length: 25 }, async () => {
          const id = await cluster.submit({ name: "short", ...WAITS });
          await cluster.post(`/v1/jobs/${id}/cancel`);
        }),
      );
    }
    await open(page, cluster, "/jobs");
    await expect(page.getByRole("row", { name: /old/ })).toBeVisible();
    await cluster.post(`/v1/jobs/${old}/cancel`);
    await expect(page.getByRole("row", { name: /old/ })).toBeHidden();
    await page.getByRole("button", { name: "Cancelled" }).click();
    const table = page.getByRole("table", { name: "Jobs" });
    await expect(async () => {
      await table.evaluate((element) => element.scrollTo(0, element.scrollHeight));
      await expect(page.getByText(/^1,051 jobs/)).toBeVisible({ timeout: 500 });
    }).toPass({ timeout: 20_000 });
  } finally {
    await page.close();
    await cluster.end();
  }
});
