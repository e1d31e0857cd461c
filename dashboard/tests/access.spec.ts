import axe from "axe-core";
import { expect, open, test } from "./cluster";

const PAGES = ["/cluster", "/jobs", "/jobs/ID", "/what-if", "/report"];

for (const theme of ["light", "dark"] as const) {
  test(`every page can be used by everybody, in the ${theme} theme`, async ({ page, cluster }) => {
    const id = await cluster.train(`reader-${theme}`, 400);
    await page.emulateMedia({ colorScheme: theme });
    await page.goto(cluster.url);
    expect(await findings(page), "login").toEqual([]);
    await open(page, cluster);
    await expect(page.getByRole("link", { name: /GPU \d of local/ }).first()).toBeVisible();
    for (const hash of PAGES) {
      await page.evaluate(
        (to) => {
          location.hash = to;
        },
        hash.replace("ID", `${id}`),
      );
      await expect(page.locator("main h1")).toBeAttached();
      expect(await findings(page), hash).toEqual([]);
    }
    await page.evaluate(() => {
      location.hash = "/jobs";
    });
    await page.getByRole("button", { name: "Submit a job" }).click();
    expect(await findings(page), "dialog").toEqual([]);
    await cluster.post(`/v1/jobs/${id}/cancel`);
  });
}

test("every page fits a phone", async ({ page, cluster }) => {
  const id = await cluster.train("phone", 400);
  await page.setViewportSize({ width: 375, height: 740 });
  await open(page, cluster);
  for (const hash of PAGES) {
    await page.evaluate(
      (to) => {
        location.hash = to;
      },
      hash.replace("ID", `${id}`),
    );
    await expect(page.locator("main h1")).toBeAttached();
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    expect(width, hash).toBeLessThanOrEqual(375);
  }
  await cluster.post(`/v1/jobs/${id}/cancel`);
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
async function findings(page: import("@playwright/test").Page): Promise<string[]> {
  await page.evaluate(axe.source);
  return page.evaluate(async () => {
    const { violations } = await (globalThis as unknown as { axe: typeof axe }).axe.run(document);
    const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
    return grave.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
  });
}
