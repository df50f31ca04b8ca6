// The server's Content-Security-Policy allows scripts and styles from files only.
import { expect, test } from "vitest";
import page from "../index.html?raw";

const components = import.meta.glob<string>("./**/*.svelte", { query: "?raw", import: "default", eager: true });

test("the page has no inline script, style or handler", () => {
  const scripts = page.match(/<script\b[^>]*>/g) ?? [];
  expect(scripts.length).toBeGreaterThan(0);
  for (const script of scripts) expect(script).toContain(" src=");
  expect(page).not.toMatch(/<style\b|\sstyle=|\son\w+=|javascript:/i);
});

test("no component has a literal style attribute", () => {
  expect(Object.keys(components).length).toBeGreaterThan(0);
  const wrong = Object.entries(components).filter(([, source]) => /\sstyle=["']/.test(source));
  expect(wrong.map(([path]) => path)).toEqual([]);
});
