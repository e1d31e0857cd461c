import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, open, test } from "./cluster";

test("a server that goes away and comes back is found again, with what happened meanwhile", async ({
  page,
  cluster,
}) => {
  const id = await cluster.train("survivor", 400);
  await open(page, cluster, `/jobs/${id}`);
  await expect(page.locator(".toolbar .phase")).toHaveText("running");
  await expect(page.getByRole("img", { name: /^GPUs over/ })).toBeVisible();
  await cluster.down();
  await expect(page.getByRole("alert")).toContainText("The server does not answer");
  await cluster.up();
  await expect(page.getByRole("status").filter({ hasText: "live" })).toBeVisible();
  await expect(page.getByRole("alert")).toBeHidden();
  await expect(page.getByRole("heading", { name: /survivor/ })).toBeVisible();
  // What was drawn before the restart is still there.
  await expect(page.getByRole("img", { name: /^GPUs over/ })).toBeVisible();
  const later = await cluster.train("latecomer", 400);
  await page.getByRole("link", { name: "Jobs", exact: true }).click();
  await expect(page.getByRole("row", { name: /latecomer/ })).toBeVisible();
  for (const job of [id, later]) await cluster.post(`/v1/jobs/${job}/cancel`);
  await expect(page.getByRole("row", { name: /latecomer/ })).toBeHidden();
});

test("logs go on after a restart of the server, with every line once", async ({ page, cluster }) => {
  const script = join(cluster.folder, "survives.sh");
  writeFileSync(script, 'for number in $(seq 100000); do echo "line $number"; sleep 0.02; done\n');
  const id = await cluster.submit({ name: "writer", command: ["sh", script], flexibility: "rigid" });
  await open(page, cluster, `/jobs/${id}`);
  const newest = async () => Number((await page.locator(".log-line").last().textContent())?.split("line ")[1]);
  await expect.poll(newest).toBeGreaterThan(20);
  await cluster.down();
  const seen = await newest();
  await expect(page.getByText(/lines?, the server does not answer/)).toBeVisible();
  await cluster.up();
  await expect.poll(newest).toBeGreaterThan(seen + 100);
  await expect(page.getByText(/complete/)).toBeHidden();
  const saving = page.waitForEvent("download");
  await page.getByRole("button", { name: "Save" }).click();
  const numbers = readFileSync(await (await saving).path(), "utf8").match(/(?<=line )\d+/g) ?? [];
  expect(numbers).toEqual(numbers.map((_, idx) => `${idx + 1}`));
  await cluster.post(`/v1/jobs/${id}/cancel`);
  await expect(page.getByText(/lines, complete/)).toBeVisible();
});
