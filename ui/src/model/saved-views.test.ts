import { expect, test } from "vitest";
import { fromSaved, slugOf, toSaved } from "./saved-views";
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
