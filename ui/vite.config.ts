import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

const server = "http://127.0.0.1:8501";

export default defineConfig({
  // Relative addresses: the dashboard also works behind a proxy that serves it from a folder.
  base: "./",
  plugins: [svelte({ configFile: false })],
  build: {
    outDir: "../src/tachograph/server/static",
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    // The page is served under `script-src 'self'; style-src 'self'`: nothing may be inlined, not even a small picture.
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
    // What is bundled is handed on with the wheel, and so are its licences.
    license: { fileName: "licenses.md" },
  },
  server: {
    host: "127.0.0.1",
    proxy: { "/api": server, "/healthz": server },
  },
});
