import { expect, test } from "vitest";
import { comparisonOf, fromSaved, slugOf, toSaved, toSavedComparison } from "./saved-views";
import { defaultTable, type TableView } from "./table-view";

test("names become names of files", () => {
  expect(slugOf(" Best runs, lr ≥ 1e-4! ")).toBe("best-runs-lr-1e-4");
  expect(slugOf("Größe")).toBe("gro-e");
  expect(slugOf("→")).toBe("");
  expect(slugOf("x".repeat(100))).toHaveLength(64);
});

test("a view survives being saved, and keeps what the table does not know", () => {
  const view: TableView = {
    ...defaultTable,
    filter: "tag:x",
    columns: ["a"],
    pinned: ["a"],
    group: ["config"],
    isOnlyDifferent: true,
    isColored: true,
  };
  const detail = { slug: "v", problems: [], ...toSaved("v", view, ["b"]) };
  expect(fromSaved(detail)).toEqual(view);
  const again = toSaved("v", view, ["b"], { ...detail, charts: ["loss"], x: "time", pinned_runs: ["r"] });
  expect(again).toMatchObject({ charts: ["loss"], x: "time", pinned_runs: ["r"] });
  expect(toSaved("v", defaultTable, ["b"]).columns).toEqual(["b"]);
});

test("a comparison is saved with its whole address", () => {
  const saved = { slug: "v", problems: [], ...toSavedComparison("v", "#/compare/charts?run=a&q=x%3Fy&pin=b") };
  expect(comparisonOf(saved)).toBe("#/compare/charts?run=a&q=x%3Fy&pin=b");
  expect(comparisonOf({ ...saved, charts: ["loss"] })).toBeNull();
  expect(comparisonOf({ ...saved, charts: [] })).toBeNull();
});
