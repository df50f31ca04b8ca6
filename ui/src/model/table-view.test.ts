import { expect, test } from "vitest";
import type { FieldView } from "../api";
import {
  arrange,
  columnWidth,
  defaultColumns,
  defaultTable,
  fieldParts,
  groupColumns,
  moveColumn,
  nextSort,
  readTable,
  resultOrders,
  shiftColumn,
  writeTable,
} from "./table-view";

const field = (name: string, more: Partial<FieldView> = {}): FieldView => ({
  field: name,
  kind: "number",
  num_runs: 3,
  differs: true,
  varies: true,
  is_label: false,
  values: [],
  ...more,
});

test("a view survives its address, and defaults are left out", () => {
  const view = {
    filter: 'state:crashed `loss/kl (a)`.last<1 or "x & y"',
    columns: ["config.a,b", "val/loss.min"],
    pinned: ["val/loss.min"],
    sort: "-config.a,b",
    group: ["config", "host"],
    archived: "only" as const,
    isOnlyDifferent: true,
    isColored: true,
  };
  expect(readTable(new URLSearchParams(writeTable(view).toString()))).toEqual(view);
  expect(writeTable(defaultTable).toString()).toBe("");
  const odd = readTable(new URLSearchParams("by=a&by=a&by=b&by=c&by=d&archived=maybe&c="));
  expect(odd).toMatchObject({ group: ["a", "b", "c"], archived: "no", columns: null });
});

test("default columns are the result, what was varied in most runs, and facts", () => {
  const fields = [
    field("state"),
    field("tags", { differs: false }),
    field("started"),
    field("loss"),
    field("result"),
    field("note", { differs: false }),
    field("config.of_another_script", { num_runs: 1 }),
    field("config.optimizer", { kind: "text" }),
    field("config.seed", { is_label: true }),
    field("config.out_dir", { kind: "text", is_label: true }),
    field("config.lr"),
    field("config.same", { differs: false, varies: false }),
    field("config.missing_in_some", { varies: false }),
    field("val/loss.last"),
    field("lr.last"),
  ];
  const config = ["config.lr", "config.optimizer", "config.seed", "config.out_dir"];
  const expected = ["state", "result", ...config, "loss", "started"];
  expect(defaultColumns(fields, false)).toEqual(expected);
  expect(defaultColumns(fields, true)).toContain("tags");
  expect(defaultColumns([], false)).toEqual(["state", "loss", "steps", "duration", "started"]);
});

test("groups show what they have in common, then columns that have a mean", () => {
  const fields = [field("state", { kind: "text" }), field("started", { kind: "time" }), field("config.lr")];
  expect(groupColumns(["state", "started", "config.lr", "loss.min"], ["config.opt"], fields)).toEqual([
    "config.opt",
    "config.lr",
    "loss.min",
  ]);
});

test("columns move, shift and are pinned", () => {
  expect(moveColumn(["a", "b", "c"], "a", "c")).toEqual(["b", "c", "a"]);
  expect(moveColumn(["a", "b", "c"], "c", "a")).toEqual(["c", "a", "b"]);
  expect(shiftColumn(["a", "b"], "a", -1)).toEqual(["a", "b"]);
  expect(shiftColumn(["a", "b"], "a", 1)).toEqual(["b", "a"]);
  expect(arrange(["a", "b", "c"], ["c"])).toEqual({ pinned: ["c"], free: ["a", "b"] });
});

test("sorting starts with the best or the highest, then reverses", () => {
  expect(nextSort("-started", "val_loss.min", "number", -1)).toBe("val_loss.min");
  expect(nextSort("val_loss.min", "val_loss.min", "number", -1)).toBe("-val_loss.min");
  expect(nextSort("-started", "steps", "number", 0)).toBe("-steps");
  expect(nextSort("-started", "host", "text", 0)).toBe("host");
});

test("runs whose results cannot be compared have no best one", () => {
  expect(resultOrders("result", -1)).toEqual([["result", "best first"]]);
  expect(resultOrders("result", 1)).toEqual([["-result", "best first"]]);
  expect(resultOrders("result", 0)).toEqual([]);
});

test("fields have a prefix, a name and an aggregate", () => {
  expect(fieldParts("config.model.layers")).toEqual({ prefix: "config", name: "model.layers", aggregate: "" });
  expect(fieldParts("val/loss.at_min")).toEqual({ prefix: "", name: "val/loss", aggregate: "at_min" });
  expect(fieldParts("steps")).toEqual({ prefix: "", name: "steps", aggregate: "" });
  expect(columnWidth("config.a_very_long_name_of_a_setting_indeed", "number")).toBe(240);
});
