import { expect, test } from "vitest";
import { tabs } from "./route";
import { tabsWithContent } from "./run-tabs";

const detail = (num_records: Record<string, number>, indexed = 1, num_media_lost = 0) => ({
  num_records,
  num_media_lost,
  indexed,
  goodput: null,
});

test("tabs that stay empty are hidden, except the open one", () => {
  expect(tabsWithContent(detail({ step: 3 }), "finished", false, "charts")).toEqual([
    "charts",
    "overview",
    "health",
    "events",
  ]);
  expect(tabsWithContent(detail({ step: 3 }), "finished", false, "control")).toContain("control");
  const full = { span: 1, log: 1, completions: 1, control_change: 1, rank: 1, media: 1 };
  expect(tabsWithContent(detail(full), "failed", false, "charts")).toEqual([...tabs]);
  expect(tabsWithContent(detail({}), "finished", true, "charts")).toContain("log");
  expect(tabsWithContent(detail({}, 1, 3), "crashed", false, "charts")).toContain("media");
});

test("a run that is recorded may get content", () => {
  expect(tabsWithContent(detail({}), "running", false, "charts")).toEqual(
    tabs.filter((tab) => !["completions", "ranks", "media"].includes(tab)),
  );
  expect(tabsWithContent(detail({}, 0.5), "finished", false, "charts")).toEqual([...tabs]);
  expect(tabsWithContent(null, "finished", false, "charts")).toEqual([...tabs]);
});
