import { expect, test } from "vitest";
import {
  comparisonOf,
  fromSaved,
  slugOf,
  toSaved,
  toSavedComparison,
  toSavedWorkspace,
  viewAddress,
  viewConflict,
} from "./saved-views";
import { parse } from "./route";
import { drawOnly, defaultWorkspace, withSelection } from "./workspace-view";
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

test("a view of the workspace has an expression and charts, and its file may be changed", () => {
  const listed = withSelection(defaultWorkspace, {
    filter: "tag:x",
    sort: "loss",
    archived: "all",
    group: ["config.lr"],
  });
  const view = drawOnly({ ...listed, charts: { ...listed.charts, pinned: ["loss"], isLogY: true } }, ["a"]);
  const saved = { slug: "v", problems: [], ...toSavedWorkspace("v", view) };
  expect(saved).toMatchObject({ filter: "tag:x", sort: "loss", archived: "all", group: ["config.lr"] });
  expect(parse(viewAddress(saved))).toEqual({ page: "workspace", view });
  expect(parse(viewAddress({ ...saved, filter: "tag:y" }))).toEqual({
    page: "workspace",
    view: { ...view, filter: "tag:y" },
  });
  expect(viewConflict(saved, "workspace")).toBe("");
  const table = { slug: "t", problems: [], ...toSaved("t", defaultTable, ["a"]) };
  expect(parse(viewAddress(table)).page).toBe("runs");
  expect(viewConflict(table, "workspace")).toContain("table");
  const comparison = { ...table, charts: [{ compare: "run=a" }] };
  expect(parse(viewAddress(comparison)).page).toBe("compare");
  for (const [each, page] of [
    [comparison, "table"],
    [comparison, "workspace"],
    [saved, "table"],
  ] as const)
    expect(viewConflict(each, page)).not.toBe("");
});
