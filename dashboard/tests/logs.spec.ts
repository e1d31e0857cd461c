import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, open, test } from "./cluster";

const MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>";

test("logs are followed as they are written, and searched", async ({ page, cluster }) => {
  const script = join(cluster.folder, "counts.sh");
  writeFileSync(script, 'for number in $(seq 100000); do echo "line $number"; sleep 0.02; done\n');
  const id = await cluster.submit({ name: "talker", command: ["sh", script], flexibility: "rigid" });
  await open(page, cluster, `/jobs/${id}`);
  const newest = async () => Number((await page.locator(".log-line").last().textContent())?.split("line ")[1]);
  await expect.poll(newest).toBeGreaterThan(40);
  await expect.poll(newest).toBeGreaterThan(150);
  await page.getByLabel("Follow").uncheck();
  await page.getByLabel("Search the logs").fill("line 33");
  await expect(page.locator(".log mark").first()).toHaveText("line 33");
  await expect(page.getByText(/\| line 34$/)).toBeHidden();
  await cluster.post(`/v1/jobs/${id}/cancel`);
  await expect(page.getByText(/complete/)).toBeVisible();
});

test("names and logs of any kind are text: nothing of them runs, colours or breaks the page", async ({
  page,
  cluster,
}) => {
  const script = join(cluster.folder, "hostile.sh");
  const program = [
    `printf '%s\\n' '${MARKUP}'`,
    "printf '\\033[31mred\\033[0m \\033]0;title\\007\\033[2Jplain\\n'",
    "head -c 10000000 /dev/zero | tr '\\0' 'x'",
    "printf '\\nthe end\\n'",
    "sleep 1000",
  ];
  writeFileSync(script, program.join("\n"));
  const name = `${MARKUP.replaceAll("/", "")}\u202egnp`;
  const id = await cluster.submit({ name, command: ["sh", script], flexibility: "rigid" });
  await open(page, cluster, `/jobs/${id}`);
  await expect(page.getByRole("heading", { name: "<img src=x" })).toBeVisible();
  await expect(page.getByText("| the end")).toBeVisible();
  await page.getByLabel("Follow").uncheck();
  await page.getByLabel("Replica", { exact: true }).selectOption({ index: 1 });
  const lines = page.locator(".log-line");
  await expect(lines.nth(0)).toHaveText(MARKUP);
  await expect(lines.nth(1)).toHaveText("red plain");
  // The scheduler tells a line of millions of characters in pieces, each of which is cut here.
  const more = page.getByRole("button", { name: /more characters/ }).first();
  await expect(more).toHaveText(/^\d{2,3},\d{3} more/);
  const count = async () => Number((await more.textContent())?.replaceAll(/\D/g, ""));
  const before = await count();
  await more.click();
  await expect.poll(count).toBe(before - 20_000);
  const saving = page.waitForEvent("download");
  await page.getByRole("button", { name: "Save" }).click();
  const saved = await (await saving).createReadStream();
  let size = 0;
  for await (const piece of saved) size += `${piece}`.replaceAll(/[^x]/g, "").length;
  expect(size, "nothing of it is lost").toBeGreaterThanOrEqual(10_000_000);
  for (const hash of ["/cluster", "/jobs"]) {
    await page.evaluate((to) => {
      location.hash = to;
    }, hash);
    await expect(page.getByText("<img src=x").first()).toBeVisible();
  }
  expect(await page.locator("img, main script").count()).toBe(0);
  await cluster.post(`/v1/jobs/${id}/cancel`);
});

test("a progress bar is shown as it stands, and who reads further up is left there", async ({ page, cluster }) => {
  const script = join(cluster.folder, "bar.sh");
  const program = [
    "for number in $(seq 200); do echo early $number; done",
    "for part in 10 20 30; do printf '\\r%s%% of it' $part; sleep 0.2; done",
    "until test -e go; do sleep 0.1; done",
    "printf '\\r100%% of it\\n'",
    "for part in one two three; do",
    "  until test -e $part; do sleep 0.1; done",
    "  for number in $(seq 100); do echo $part $number; done",
    "done",
    "sleep 1000",
  ];
  writeFileSync(script, program.join("\n"));
  const id = await cluster.submit({ name: "bar", command: ["sh", script], flexibility: "rigid" });
  await open(page, cluster, `/jobs/${id}`);
  const last = page.locator(".log-line").last();
  await expect(last).toHaveText(/^\d+\| 30% of it$/);
  writeFileSync(join(cluster.folder, "go"), "");
  await expect(page.getByText(/\| 100% of it$/)).toBeVisible();
  writeFileSync(join(cluster.folder, "one"), "");
  await expect(last).toHaveText(/one 100$/);
  const log = page.getByRole("log");
  await log.hover();
  await page.mouse.wheel(0, -100_000);
  await expect(page.getByText(/\| early 1$/)).toBeVisible();
  const lines = page.getByRole("status").filter({ hasText: /\d lines?/ });
  const count = async () => Number(/[\d,]+/.exec((await lines.textContent()) ?? "")?.[0]?.replace(",", ""));
  const before = await count();
  writeFileSync(join(cluster.folder, "two"), "");
  await expect.poll(count).toBe(before + 100);
  await expect(page.getByText(/\| early 1$/)).toBeInViewport();
  await log.evaluate((element) => element.scrollTo(0, element.scrollHeight));
  await expect(last).toHaveText(/two 100$/);
  writeFileSync(join(cluster.folder, "three"), "");
  await expect.poll(count).toBe(before + 200);
  await expect(page.getByText(/\| early 1$/)).toBeHidden();
  await expect(last).toHaveText(/three 100$/);
  await cluster.post(`/v1/jobs/${id}/cancel`);
});
