import { defineConfig } from "@playwright/test";

// As root, and on machines without a way out: no sandbox, and nothing that a browser does of its own accord.
const args = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export default defineConfig({
  testDir: "tests",
  // One cluster for all, whose jobs each test tells apart by their names.
  workers: 1,
  timeout: 60_000,
  expect: { timeout: 20_000 },
  reporter: "list",
  outputDir: "test-results",
  projects: [
    { name: "tests", testMatch: "*.spec.ts" },
    { name: "measure", testMatch: "*.measure.ts", timeout: 600_000 },
    { name: "screenshots", testMatch: "*.shots.ts", timeout: 300_000 },
  ],
  use: {
    launchOptions: { executablePath: process.env.POLLUX_CHROMIUM ?? "/usr/bin/chromium", args },
    viewport: { width: 1440, height: 900 },
  },
});
