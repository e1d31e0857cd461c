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
