import { createHash } from "node:crypto";
import { mkdirSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { constants, gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

/** Writes the three files that the server embeds, compressed; the page names the others with what they hold. */
function embed(folder: string): Plugin {
  return {
    name: "embed",
    writeBundle(_, bundle) {
      let page = "";
      const files = new Map<string, string>();
      for (const output of Object.values(bundle)) {
        const source = output.type === "chunk" ? output.code : output.source.toString();
        if (output.fileName === "index.html") page = source;
        else files.set(output.fileName, source);
      }
      mkdirSync(folder, { recursive: true });
      const write = (name: string, text: string) =>
        writeFileSync(join(folder, `${name}.gz`), gzipSync(text, { level: constants.Z_BEST_COMPRESSION }));
      for (const [name, source] of files) {
        const digest = createHash("sha256").update(source).digest("hex").slice(0, 16);
        page = page.replaceAll(`/${name}`, `/${name}?${digest}`);
        write(name.replace("assets/", ""), source);
      }
      write("index.html", page);
    },
  };
}

export default defineConfig(({ command }) => ({
  plugins: command === "build" ? [embed(resolve(process.env.POLLUX_ASSETS ?? "../crates/server/assets"))] : [],
  build: {
    outDir: resolve("../target/dashboard"),
    emptyOutDir: true,
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: { entryFileNames: "assets/app.js", assetFileNames: "assets/app[extname]", codeSplitting: false },
    },
  },
  server: { proxy: { "/v1": process.env.POLLUX_URL ?? "http://127.0.0.1:7878" } },
}));
