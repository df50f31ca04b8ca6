import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

const server = "http://127.0.0.1:8501";

export default defineConfig({
  // Relative addresses, because a proxy may serve the dashboard from a subfolder.
  base: "./",
  plugins: [svelte({ configFile: false })],
  build: {
    outDir: "../src/tachograph/server/static",
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    // The page is served with `script-src 'self'; style-src 'self'`: nothing can be inlined, not even a small image.
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
    // The wheel redistributes the bundled packages, so it must contain their licences.
    license: { fileName: "licenses.md" },
  },
  server: {
    host: "127.0.0.1",
    proxy: { "/api": server, "/healthz": server },
  },
});
