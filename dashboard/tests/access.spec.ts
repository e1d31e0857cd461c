import { execFileSync } from "node:child_process";
import { join, resolve } from "node:path";
import type { Page } from "@playwright/test";
import axe from "axe-core";
import { type Cluster, expect, open, test, until } from "./cluster";

const BINARIES = resolve(process.env.POLLUX_BINARIES ?? "../target/debug");
const PHONE = { width: 375, height: 740 };
const DESK = { width: 1440, height: 900 };

/** Every page and window, and what shows that it is there. */
const PLACES: [string, string, (page: Page, job: string, cluster: Cluster) => Promise<void>][] = [
  ["cluster", "/cluster", (page, job) => expect(page.getByRole("link", { name: `${job}, job` }).first()).toBeVisible()],
  ["jobs", "/jobs", (page, job) => expect(page.getByRole("row", { name: job })).toBeVisible()],
  ["job", "/jobs/ID", (page, job) => expect(page.getByRole("heading", { name: job })).toBeVisible()],
  [
    "what-if",
    '/what-if?changes=[{"add_nodes":{"count":1,"gpus":4}},{"submit":{"trains_like":{"application":"ncf"}}}]',
    (page, job) => expect(page.getByRole("row", { name: job })).toBeVisible(),
  ],
  ["reports", "/report", (page) => expect(page.getByRole("heading", { name: "Simulation reports" })).toBeVisible()],
  [
    "report",
    "/report",
    async (page, _, cluster) => {
      await page.getByLabel("Report", { exact: true }).setInputFiles(join(cluster.folder, "index.html"));
      await expect(page.getByRole("heading", { name: "Completion and fairness" })).toBeVisible();
    },
  ],
  [
    "submission",
    "/jobs?phase=all",
    async (page) => {
      await page.getByRole("button", { name: "Submit a job" }).click();
      await expect(page.getByRole("dialog")).toBeVisible();
    },
  ],
  [
    "confirmation",
    "/jobs/ID",
    async (page, job) => {
      await page.getByRole("button", { name: `cancel ${job}` }).click();
      await expect(page.getByRole("dialog")).toBeVisible();
    },
  ],
];

for (const theme of ["light", "dark"] as const) {
  test(`every page can be used by everybody, at a desk and on a phone, in the ${theme} theme`, async ({
    page,
    cluster,
  }) => {
    test.slow();
    const [job, id] = [`reader-${theme}`, await cluster.train(`reader-${theme}`, 900)];
    const report = ["sim", "compare", "--policy", "pollux,fifo", "--generate-jobs", "6", "--report", cluster.folder];
    execFileSync(join(BINARIES, "pollux"), report, { stdio: "ignore" });
    await until("its start", async () => (await cluster.job(id)).phase === "running");
    await page.emulateMedia({ colorScheme: theme });
    await page.goto(cluster.url);
    await expect(page.getByLabel("Token")).toBeVisible();
    expect(await findings(page), "login").toEqual([]);
    await open(page, cluster);
    for (const [name, hash, arrive] of PLACES) {
      for (const size of [DESK, PHONE]) {
        await page.setViewportSize(size);
        await open(page, cluster, hash.replace("ID", `${id}`));
        await arrive(page, job, cluster);
        expect(await findings(page), `${name} at ${size.width}`).toEqual([]);
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        expect(width, name).toBeLessThanOrEqual(size.width);
        await page.keyboard.press("Escape");
      }
    }
    await page.setViewportSize(PHONE);
    await open(page, cluster);
    await page.getByRole("button", { name: "Log out" }).click();
    await expect(page.getByLabel("Token")).toBeVisible();
    await cluster.post(`/v1/jobs/${id}/cancel`);
  });
}

test("all GPUs are one stop of the keyboard, and arrows go from one to the next", async ({ page, cluster }) => {
  const ids = [await cluster.train("left", 900), await cluster.train("right", 900)];
  await open(page, cluster);
  const cells = page.getByRole("link", { name: /a GPU on local/ });
  await expect(page.getByRole("link", { name: /^left, job/ }).first()).toBeVisible();
  await expect(page.getByRole("link", { name: /^right, job/ }).first()).toBeVisible();
  await expect(page.locator('a.cell[tabindex="0"]')).toHaveCount(1);
  await cells.first().focus();
  await page.keyboard.press("ArrowRight");
  await expect(cells.nth(1)).toBeFocused();
  await page.keyboard.press("End");
  await expect(cells.last()).toBeFocused();
  await page.keyboard.press("Tab");
  await expect(page.locator(".holders a").first()).toBeFocused();
  for (const id of ids) await cluster.post(`/v1/jobs/${id}/cancel`);
});

test("a dark page is dark before its script has run", async ({ page, cluster }) => {
  await page.emulateMedia({ colorScheme: "dark" });
  await page.route("**/assets/app.js*", (route) => route.abort());
  await page.goto(cluster.url);
  const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const [red = 255] = (ground.match(/\d+/g) ?? []).map(Number);
  expect(red, ground).toBeLessThan(64);
});

test("the theme is the system's until one is chosen, and that one stays", async ({ page, cluster }) => {
  await page.emulateMedia({ colorScheme: "dark" });
  await open(page, cluster);
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  expect(await theme()).toBe("dark");
  await page.getByRole("button", { name: "Use the light theme" }).click();
  expect(await theme()).toBe("light");
  await page.reload();
  expect(await theme()).toBe("light");
});

/** What axe finds that keeps people out. */
async function findings(page: Page): Promise<string[]> {
  await page.evaluate(axe.source);
  return page.evaluate(async () => {
    const { violations } = await (globalThis as unknown as { axe: typeof axe }).axe.run(document);
    const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
    return grave.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
  });
}
