import type { JobList } from "../src/api";
import { expect, open, test, trainer, until } from "./cluster";

test("a job that is submitted here appears, grows and finishes before one's eyes", async ({ page, cluster }) => {
  // The others are taken until the page has shown that it began with one.
  const filler = await cluster.submit({ command: ["sleep", "1000"], replicas: 7, flexibility: "rigid" });
  await until("the filler", async () => (await cluster.job(filler)).phase === "running");
  await open(page, cluster, "/jobs");
  await page.getByRole("button", { name: "Submit a job" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Command").fill(trainer(8, "good").join(" "));
  await dialog.getByLabel("Folder").fill(cluster.folder);
  await dialog.getByLabel("Name").fill("grower");
  await dialog.getByLabel("at most").fill("8");
  await dialog.getByLabel("Epochs").fill("8");
  await dialog.getByRole("button", { name: "Submit" }).click();
  await expect(page.getByRole("heading", { name: /grower/ })).toBeVisible();
  const gpus = page.locator(".facts div", { hasText: "GPUs" }).first();
  await expect(gpus).toContainText("1 on 1 node");
  await cluster.post(`/v1/jobs/${filler}/cancel`);
  await expect(gpus).toContainText(/[2-8] on/);
  await expect(page.getByText(/It was grown from/)).toBeVisible();
  await expect(page.getByRole("img", { name: /Predicted goodput: \d+ on the/ })).toBeVisible();
  await expect(page.getByRole("img", { name: /Gradient noise scale over/ })).toBeVisible();
  await page.getByRole("link", { name: "Cluster", exact: true }).click();
  await expect(page.getByRole("link", { name: /grower, job \d+, a GPU on local-[01]/ }).first()).toBeVisible();
  await page.getByRole("link", { name: "Jobs", exact: true }).click();
  await page.getByRole("button", { name: "Succeeded" }).click();
  const row = page.getByRole("row", { name: /grower/ });
  await expect(row).toContainText("succeeded", { timeout: 50_000 });
  await expect(row).toContainText("100%");
});

test("pausing, resuming and cancelling ask first, and can be done by keyboard alone", async ({ page, cluster }) => {
  const id = await cluster.train("stopper", 500);
  await open(page, cluster, "/jobs");
  const row = page.getByRole("row", { name: /stopper/ });
  await expect(row).toContainText("running");
  await row.getByRole("button", { name: "pause stopper" }).focus();
  await page.keyboard.press("Enter");
  await expect(page.getByRole("dialog")).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toBeHidden();
  await expect(row.getByRole("button", { name: "pause stopper" })).toBeFocused();
  expect((await cluster.job(id)).phase).not.toBe("paused");
  await row.getByRole("button", { name: "pause stopper" }).press("Enter");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await expect(row).toContainText("paused");
  await expect(row.getByRole("button", { name: "resume stopper" })).toBeFocused();
  await row.getByRole("button", { name: "resume stopper" }).click();
  await page.getByRole("button", { name: "Resume job" }).click();
  await expect(row).toContainText("running");
  await row.getByRole("button", { name: "cancel stopper" }).click();
  await page.getByRole("button", { name: "Cancel job" }).click();
  await expect(row).toBeHidden();
  expect((await cluster.job(id)).phase).toBe("cancelled");
});

test("what is refused is said where it was asked for", async ({ page, cluster }) => {
  await open(page, cluster, "/jobs");
  await page.getByRole("button", { name: "Submit a job" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Command").fill("train 'with one argument'");
  await dialog.getByLabel("Folder").fill("not/absolute");
  await dialog.getByRole("button", { name: "Submit" }).click();
  await expect(dialog.getByRole("alert")).toContainText("expected an absolute path");
});

test("a job that is submitted in a hurry is submitted once", async ({ page, cluster }) => {
  await open(page, cluster, "/jobs");
  await page.getByRole("button", { name: "Submit a job" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Command").fill("true");
  await dialog.getByLabel("Folder").fill(cluster.folder);
  await dialog.getByLabel("Name").fill("hurried");
  await dialog.getByRole("button", { name: "Submit" }).dblclick();
  await expect(page.getByRole("heading", { name: /hurried/ })).toBeVisible();
  const { jobs } = await cluster.get<JobList>("/v1/jobs?search=hurried");
  expect(jobs.length).toBe(1);
});

test("names that turn text around turn nothing around", async ({ page, cluster }) => {
  const id = await cluster.submit({ name: "left\u202etfel", command: ["sleep", "60"] });
  await open(page, cluster, "/cluster");
  await expect(page.locator(".events")).toContainText("left\ufffdtfel was submitted");
  await page.evaluate(() => {
    location.hash = "/jobs";
  });
  await page.getByRole("button", { name: /cancel left/ }).click();
  expect(await page.locator("body").textContent()).not.toContain("\u202e");
  await page.getByRole("button", { name: "Cancel job" }).click();
  await expect(page.getByRole("row", { name: /tfel/ })).toBeHidden();
  expect((await cluster.job(id)).phase).toBe("cancelled");
});

test("the server looks for jobs that are over, so that not all of them are loaded", async ({ page, cluster }) => {
  const id = await cluster.submit({ name: "needle", command: ["true"], flexibility: "rigid", retries: 0 });
  await until("its end", async () => (await cluster.job(id)).ended_ms != null);
  await open(page, cluster, "/jobs?phase=all");
  const asked: string[] = [];
  page.on("request", (request) => asked.push(request.url()));
  await page.getByLabel("Find jobs").fill("NEEDLE");
  await expect.poll(() => asked.filter((url) => url.includes("search=NEEDLE")).length).toBe(1);
  await expect(page.getByText("1 job", { exact: true })).toBeVisible();
  await page.getByLabel("Find jobs").fill(`${id}`);
  await expect(page.getByRole("row", { name: /needle/ })).toBeVisible();
});

test("many jobs are found, sorted and kept over a reload, and only rows in view exist", async ({ page, cluster }) => {
  const ids: number[] = [];
  for (let idx = 0; idx < 120; idx++) {
    ids.push(await cluster.submit({ name: `crowd-${idx}`, command: ["true"], replicas: 64, replicas_min: 64 }));
  }
  await open(page, cluster, "/jobs");
  await expect(page.getByText(/1\d\d jobs/)).toBeVisible();
  expect(await page.getByRole("row").count()).toBeLessThan(60);
  await page.getByRole("columnheader", { name: "Name" }).getByRole("button").click();
  await page.getByLabel("Find jobs").fill("crowd-11");
  await expect(page.getByText("11 jobs")).toBeVisible();
  await page.reload();
  await expect(page.getByText("11 jobs")).toBeVisible();
  await expect(page.getByRole("row").nth(1)).toContainText("crowd-11");
  await expect(page.getByRole("columnheader", { name: "Name" })).toHaveAttribute("aria-sort", "ascending");
  await page.getByLabel("Find jobs").fill("");
  const table = page.getByRole("table", { name: "Jobs" });
  await table.evaluate((element) => element.scrollTo(0, element.scrollHeight));
  await expect(page.getByRole("row", { name: /crowd-99/ })).toBeVisible();
  await Promise.all(ids.map((id) => cluster.post(`/v1/jobs/${id}/cancel`)));
  await expect(page.getByText(/crowd/)).toHaveCount(0);
});
