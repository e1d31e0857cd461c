import { expect, test } from "./cluster";

test("a token opens the dashboard, stays in the tab over a reload, and is gone after logging out", async ({
  page,
  cluster,
}) => {
  await page.goto(`${cluster.url}/#/jobs?phase=queued`);
  await page.getByLabel("Token").fill("wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByRole("alert")).toContainText("opens nothing here");
  await page.getByLabel("Token").fill(cluster.token);
  await page.keyboard.press("Enter");
  await expect(page.getByRole("heading", { name: "Jobs" })).toBeVisible();
  await page.reload();
  await expect(page.getByRole("button", { name: /Queued/ })).toHaveAttribute("aria-pressed", "true");
  await page.getByRole("button", { name: "Log out" }).click();
  await expect(page.getByLabel("Token")).toBeVisible();
  await page.reload();
  await expect(page.getByLabel("Token")).toBeVisible();
});

test("a token is not taken before the server has answered to it, nor one that is no text", async ({
  page,
  cluster,
}) => {
  const busy = { error: { code: "too_fast", message: "too many requests: try again" } };
  await page.route("**/v1/cluster", (route) => route.fulfill({ status: 429, json: busy }));
  await page.goto(`${cluster.url}/#token=%`);
  await page.getByLabel("Token").fill(cluster.token);
  await page.keyboard.press("Enter");
  await expect(page.getByRole("alert")).toContainText("too many requests");
  expect(await page.evaluate(() => sessionStorage.length)).toBe(0);
});

test("a link with a token leaves nothing of it in the address, and none is ever sent in one", async ({
  page,
  cluster,
}) => {
  const asked: string[] = [];
  page.on("request", (request) => asked.push(request.url()));
  await page.goto(`${cluster.url}/#token=${cluster.token}`);
  await expect(page.getByText("GPUs in use")).toBeVisible();
  expect(page.url()).not.toContain("token");
  expect(asked.filter((url) => url.includes(cluster.token) && !url.includes("#"))).toEqual([]);
  await page.goBack();
  expect(page.url()).not.toContain(cluster.token);
});

test("a token that is revoked ends the session", async ({ page, cluster }) => {
  const response = await cluster.post("/v1/tokens", { label: "guest" });
  const { token } = (await response.json()) as { token: string };
  await page.goto(`${cluster.url}/#token=${token}`);
  await expect(page.getByText("GPUs in use")).toBeVisible();
  await fetch(`${cluster.url}/v1/tokens/guest`, {
    method: "DELETE",
    headers: { authorization: `Bearer ${cluster.token}` },
  });
  await expect(page.getByLabel("Token")).toBeVisible();
});
