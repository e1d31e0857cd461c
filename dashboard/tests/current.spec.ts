import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gunzipSync } from "node:zlib";
import { types } from "../scripts/types.mjs";
import { expect, test } from "./cluster";

test("the types of answers are those of the server: `npm run types` writes them", async ({ cluster }) => {
  const document = await cluster.get<object>("/openapi.json");
  expect(readFileSync("src/api.ts", "utf8")).toBe(types(document));
});

test("the bundle in the repository is built from these sources, and small: `npm run build` writes it", async () => {
  const folder = mkdtempSync(join(tmpdir(), "pollux-bundle-"));
  const options = { env: { ...process.env, POLLUX_ASSETS: folder }, stdio: "ignore" } as const;
  execFileSync("npx", ["vite", "build", "--outDir", join(folder, "plain")], options);
  const kept = "../crates/server/assets";
  const names = readdirSync(kept).sort();
  expect(names).toEqual(["app.css.gz", "app.js.gz", "index.html.gz"]);
  let size = 0;
  for (const name of names) {
    const [mine, fresh] = [kept, folder].map((place) => readFileSync(join(place, name)));
    // Versions of zlib may compress otherwise.
    expect(gunzipSync(mine ?? "").equals(gunzipSync(fresh ?? "")), name).toBe(true);
    size += mine?.length ?? 0;
  }
  expect(size).toBeLessThan(250_000);
  rmSync(folder, { recursive: true });
});
