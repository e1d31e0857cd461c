// `make screenshots`: pictures of every page in both themes, of a real cluster with real trainings.

import { execFileSync } from "node:child_process";
import { join, resolve } from "node:path";
import { test } from "@playwright/test";
import type { Job } from "../src/api";
import { Cluster, open, until } from "./cluster";

const PICTURES = resolve("../docs/images");
const BINARIES = resolve(process.env.POLLUX_BINARIES ?? "../target/debug");

test("screenshots", async ({ browser }) => {
  const cluster = await Cluster.start(["--nodes", "2x4", "--round-interval", "5"]);
  try {
    const jobs = await busy(cluster);
    const report = simulate(cluster.folder);
    for (const theme of ["light", "dark"] as const) {
      const context = await browser.newContext({ viewport: { width: 1360, height: 860 }, colorScheme: theme });
      const page = await context.newPage();
      const shoot = async (name: string, hash: string, fullPage = false) => {
        await open(page, cluster, hash);
        await page.waitForLoadState("networkidle", { timeout: 2_000 }).catch(() => undefined);
        await page.screenshot({ path: join(PICTURES, `dashboard-${name}-${theme}.png`), fullPage });
      };
      await page.goto(cluster.url);
      await page.screenshot({ path: join(PICTURES, `dashboard-login-${theme}.png`) });
      await shoot("cluster", "/cluster", true);
      await shoot("jobs", "/jobs?phase=all");
      await open(page, cluster, `/jobs/${jobs.vision}`);
      await page
        .getByText(/epoch \d+: loss/)
        .first()
        .waitFor();
      await page.screenshot({ path: join(PICTURES, `dashboard-job-${theme}.png`), fullPage: true });
      const changes = JSON.stringify([{ add_nodes: { count: 2, gpus: 4 } }]);
      await open(page, cluster, `/what-if?changes=${encodeURIComponent(changes)}`);
      await page.getByRole("table").waitFor();
      await page.screenshot({ path: join(PICTURES, `dashboard-what-if-${theme}.png`), fullPage: true });
      await open(page, cluster, "/report");
      await page.getByLabel("Report", { exact: true }).setInputFiles(report);
      await page.getByRole("heading", { name: "Completion and fairness" }).waitFor();
      const clip = { x: 0, y: 0, width: 1360, height: 1200 };
      await page.screenshot({ path: join(PICTURES, `dashboard-report-${theme}.png`), fullPage: true, clip });
      await context.close();
    }
    const phone = await browser.newContext({ viewport: { width: 375, height: 780 }, deviceScaleFactor: 2 });
    const page = await phone.newPage();
    await open(page, cluster, "/cluster");
    await page.screenshot({ path: join(PICTURES, "dashboard-phone.png") });
  } finally {
    await cluster.end();
  }
});

/** Some that train, at several sizes, one that waits, one that is paused, and some that are over. */
async function busy(cluster: Cluster): Promise<{ vision: number }> {
  const state = async (id: number) => (await cluster.job(id)) as Job;
  const probe = await cluster.train("probe", 2, "medium");
  const vision = await cluster.train("vision", 120, "good");
  await until("the end of the probe", async () => (await state(probe)).ended_ms != null);
  await cluster.train("speech", 60, "medium");
  await cluster.train("recommender", 40, "poor");
  const paused = await cluster.train("ablation", 60, "medium");
  await cluster.submit({ name: "broken", command: ["false"], retries: 0, flexibility: "rigid" });
  await until("a start", async () => (await state(paused)).phase === "running");
  await cluster.post(`/v1/jobs/${paused}/pause`);
  await cluster.train("language", 90, "good");
  await cluster.submit({ name: "large", command: ["sleep", "600"], flexibility: "rigid", replicas: 8 });
  await until("some progress", async () => ((await state(vision)).epochs ?? 0) >= 8);
  return { vision };
}

function simulate(folder: string): string {
  const args = [
    "sim",
    "compare",
    "--policy",
    "pollux,castor,tiresias,fifo",
    "--generate-jobs",
    "40",
    "--report",
    folder,
  ];
  execFileSync(join(BINARIES, "pollux"), args, { stdio: "ignore" });
  return join(folder, "index.html");
}
