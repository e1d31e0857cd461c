import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { expect, open, test } from "./cluster";

const BINARIES = resolve(process.env.POLLUX_BINARIES ?? "../target/debug");

test("both futures are told side by side, and the question outlives a reload", async ({ page, cluster }) => {
  const id = await cluster.train("forecast", 300);
  await open(page, cluster, "/what-if");
  const row = page.getByRole("row", { name: /forecast/ });
  await expect(async () => {
    await page.getByRole("button", { name: "Ask again" }).click();
    await expect(row).toContainText(/\d+ (s|m|h)/, { timeout: 2_000 });
  }).toPass();
  const nodes = page.locator("form", { has: page.getByRole("heading", { name: "Add nodes" }) });
  await nodes.getByLabel("Nodes").fill("3");
  await nodes.getByRole("button", { name: "Add" }).click();
  await expect(page.getByText("3 more nodes of 4 GPUs")).toBeVisible();
  await expect(row).toContainText(/sooner|later|same/);
  await page.reload();
  await expect(row).toContainText(/sooner|later|same/);
  await page.getByRole("button", { name: "without: 3 more nodes" }).click();
  await expect(page.getByText("Nothing is changed")).toBeVisible();
  await cluster.post(`/v1/jobs/${id}/cancel`);
});

test("an answer stands under its own question alone, and another question does not wait for the first", async ({
  page,
  cluster,
}) => {
  const id = await cluster.train("asker", 300);
  const long = Array.from({ length: 60 }, () => ({ submit: { trains_like: { application: "imagenet" } } }));
  await open(page, cluster, "/what-if");
  const table = page.getByRole("table");
  await expect(table).toBeVisible();
  await page.evaluate(
    (to) => {
      location.hash = to;
    },
    `/what-if?changes=${encodeURIComponent(JSON.stringify(long))}`,
  );
  await expect(page.getByRole("status").filter({ hasText: "being simulated" })).toBeVisible();
  await expect(table).toBeHidden();
  await page.evaluate(() => {
    location.hash = '/what-if?changes=[{"policy":{"name":"fifo"}}]';
  });
  await expect(page.getByText("fifo decides")).toBeVisible();
  await expect(page.getByRole("row", { name: /asker/ })).toBeVisible();
  await expect(page.getByRole("row", { name: /imagenet/ })).toHaveCount(0);
  await expect(page.getByRole("alert")).toHaveCount(0);
  await page.evaluate(() => {
    location.hash = '/what-if?changes=[{"policy":{"name":"magic"}}]';
  });
  await expect(page.getByRole("alert")).toContainText('unknown policy "magic"');
  await expect(table).toBeHidden();
  await cluster.post(`/v1/jobs/${id}/cancel`);
});

test("links that ask for nonsense are told so in a line, and lead on", async ({ page, cluster }) => {
  for (const changes of [
    "[null]",
    "[{}]",
    "{",
    "7",
    '[{"submit":{}}]',
    '[{"cancel":null}]',
    '[{"pause":{"job":"x"}}]',
  ]) {
    await open(page, cluster, `/what-if?changes=${encodeURIComponent(changes)}`);
    await expect(page.getByRole("alert"), changes).toContainText("This link asks for no changes");
    await page.reload();
    await expect(page.getByRole("alert"), changes).toContainText("This link asks for no changes");
    await page.getByRole("link", { name: "Cluster", exact: true }).click();
    await expect(page.getByText("GPUs in use")).toBeVisible();
  }
});

test("a page that breaks says so and leaves the others alone", async ({ page, cluster, seen }) => {
  await page.route("**/v1/what-if", (route) =>
    route.request().method() === "POST" ? route.fulfill({ json: { jobs: null } }) : route.continue(),
  );
  await open(page, cluster, "/what-if");
  await expect(page.getByRole("heading", { name: "This page cannot be shown" })).toBeVisible();
  await page.getByRole("button", { name: "To the cluster" }).click();
  await expect(page.getByText("GPUs in use")).toBeVisible();
  seen.length = 0;
});

test("a report of the simulator opens here and by itself, and anything else is refused", async ({ page, cluster }) => {
  const args = ["sim", "compare", "--policy", "pollux,fifo", "--generate-jobs", "6", "--report", cluster.folder];
  execFileSync(join(BINARIES, "pollux"), args, { stdio: "ignore" });
  const report = join(cluster.folder, "index.html");
  await open(page, cluster, "/report");
  const other = join(cluster.folder, "other.html");
  writeFileSync(other, "<script>alert(1)</script>");
  await page.getByLabel("Report", { exact: true }).setInputFiles(other);
  await expect(page.getByRole("alert")).toContainText("other.html is no report");
  await page.getByLabel("Report", { exact: true }).setInputFiles(report);
  await expect(page.getByRole("heading", { name: "Completion and fairness" })).toBeVisible();
  const curves = page.locator(".report path.curve.of-1").first();
  await expect(curves).toBeVisible();
  expect(await curves.evaluate((curve) => getComputedStyle(curve).stroke)).toMatch(/^rgb/);
  await page.locator(".report").getByRole("button", { name: "fifo" }).click();
  await expect(curves).toBeHidden();
  await page.goto(`file://${report}`);
  await expect(page.getByRole("heading", { name: "Completion and fairness" })).toBeVisible();
  await expect(page.locator("path.curve").first()).toBeVisible();
});
