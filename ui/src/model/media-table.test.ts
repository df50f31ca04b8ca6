import { expect, test } from "vitest";
import {
  chooseKey,
  choosePairs,
  chooseRows,
  comparableColumns,
  diffTables,
  readAgainst,
  sortByChange,
  splitChange,
  stateOf,
  stepAgainst,
  tableColumns,
} from "./media-table";

test("rows of a table are searched and sorted", () => {
  const rows = [{ a: 2, t: "x" }, { a: "NaN", t: "Yes" }, { a: 1 }, { t: "z" }];
  expect(chooseRows(rows, "", "a").map((row) => row["a"])).toEqual([1, 2, "NaN", undefined]);
  expect(chooseRows(rows, "", "-a").map((row) => row["a"])).toEqual([2, 1, "NaN", undefined]);
  expect(chooseRows(rows, "yES", "")).toEqual([rows[1]]);
});

test("columns that few rows have come last", () => {
  const rows = [{ note: "odd", a: 1, b: 0 }, { a: 2 }, { a: 3, b: 1, note: "" }];
  const columns = tableColumns({ columns: ["note", "a", "b"], rows });
  expect(columns.map(({ name, numFilled, isSparse }) => [name, numFilled, isSparse])).toEqual([
    ["a", 3, false],
    ["b", 2, false],
    ["note", 1, true],
  ]);
  expect(tableColumns({ columns: [], rows: [] })).toEqual([]);
});

test("columns of one of two tables come last", () => {
  const columns = tableColumns(
    { columns: ["extra", "a"], rows: [{ extra: 1, a: 1 }] },
    { columns: ["a", "gone"], rows: [{ a: 1, gone: 2 }] },
  );
  expect(columns.map(({ name, isSparse }) => [name, isSparse])).toEqual([
    ["a", false],
    ["extra", true],
    ["gone", true],
  ]);
});

test("the address names the step to compare with", () => {
  expect(["previous", "first", "40", "-1", "x", "", null].map(readAgainst)).toEqual([
    "previous",
    "first",
    40,
    -1,
    "",
    "",
    "",
  ]);
  const steps = [10, 20, 30];
  expect(stepAgainst(steps, 30, "previous")).toBe(20);
  expect(stepAgainst(steps, 35, "first")).toBe(10);
  expect(stepAgainst(steps, 10, "previous")).toBeNull();
  expect(stepAgainst(steps, 10, "first")).toBeNull();
  expect(stepAgainst(steps, 30, 25)).toBe(20);
  expect(stepAgainst(steps, 30, 5)).toBeNull();
  expect(stepAgainst(steps, 30, "")).toBeNull();
});

test("the column that joins rows has cells of its own in both tables", () => {
  const before = [
    { n: 1, prompt: "a", ok: true },
    { n: 2, prompt: "b", ok: true },
  ];
  const after = [
    { n: 7, prompt: "b", ok: true },
    { n: 2, prompt: "a", ok: false },
  ];
  expect(chooseKey(["n", "prompt", "ok"], after, before)).toBe("prompt");
  expect(chooseKey(["ok"], after, before)).toBe("");
  expect(chooseKey(["prompt"], [{ prompt: "x" }], before)).toBe(""); // none in both
  expect(chooseKey(["prompt"], [{ prompt: "a" }, {}], before)).toBe("");
});

test("rows are joined by a key", () => {
  const picture = (sha: string, size: number) => ({ sha256: sha.repeat(64), ext: "png", bytes: size });
  const before = [
    { p: "a", score: 1, image: picture("a", 1) },
    { p: "b", score: 2, image: picture("a", 1) },
    { p: "gone", score: 3 },
  ];
  const after = [
    { p: "b", score: 5, image: picture("b", 1) },
    { p: "new", score: 4 },
    { p: "a", score: 1, image: picture("a", 2), more: null },
  ];
  const diff = diffTables(after, before, "p");
  expect(diff.pairs.map((pair) => [stateOf(pair), pair.changed])).toEqual([
    ["changed", ["score", "image"]],
    ["added", []],
    ["equal", []],
    ["removed", []],
  ]);
  expect(diff).toMatchObject({ numChanged: 1, numAdded: 1, numRemoved: 1, numEqual: 1 });
  expect(choosePairs(diff.pairs, "gone", "")).toEqual([{ after: null, before: before[2], changed: [] }]);
  expect(choosePairs(diff.pairs, "", "-score").map((pair) => (pair.after ?? pair.before)?.["score"])).toEqual([
    5, 4, 3, 1,
  ]);
});

test("rows are sorted by how much a number changed", () => {
  const row = (id: string, x: unknown, more = {}): Record<string, unknown> => ({ id, x, ...more });
  const before = [row("same", 1), row("up", 1), row("broken", 1), row("down", 5), row("gone", 9), row("text", "a")];
  const after = [row("new", 99), row("same", 1), row("up", 3), row("broken", "NaN"), row("down", -5), row("text", 4)];
  const { pairs } = diffTables(after, before, "id");
  expect(comparableColumns(pairs, ["id", "x"])).toEqual(["x"]);
  expect(sortByChange(pairs, "x").map((pair) => (pair.after ?? pair.before)?.["id"])).toEqual([
    ...["broken", "down", "up", "same"],
    ...["new", "text", "gone"],
  ]);
  expect(sortByChange(pairs, "")).toEqual(pairs);
  const infinite = diffTables([row("a", "Infinity"), row("b", 2)], [row("a", "Infinity"), row("b", 1)], "id");
  expect(sortByChange(infinite.pairs, "x")[0]?.after?.["id"]).toBe("b");
});

test("rows with the same key are joined in their order, and without a key by position", () => {
  const twice = diffTables(
    [{ k: 1, v: 1 }, { k: 1, v: 9 }, { k: 1 }],
    [
      { k: 1, v: 1 },
      { k: 1, v: 2 },
    ],
    "k",
  );
  expect(twice.pairs.map(stateOf)).toEqual(["equal", "changed", "added"]);
  const byPosition = diffTables([{ v: "NaN" }, { v: 1 }], [{ v: "NaN" }, { v: "1" }, { v: 0 }], "");
  expect(byPosition.pairs.map(stateOf)).toEqual(["equal", "changed", "removed"]);
});

test("columns of one table only make no row different", () => {
  const diff = diffTables([{ k: 1, extra: 2, none: null }], [{ k: 1, gone: 3 }], "k");
  expect(diff.pairs.map(stateOf)).toEqual(["equal"]);
  expect([diff.onlyAfter, diff.onlyBefore]).toEqual([["extra"], ["gone"]]);
  expect(diffTables([{ k: 1 }], [], "k").onlyAfter).toEqual([]);
  const cleared = diffTables([{ k: 1, note: "x" }, { k: 2 }], [{ k: 1 }, { k: 2, note: "x" }], "k");
  expect(cleared.pairs.map((pair) => pair.changed)).toEqual([["note"], ["note"]]);
});

test("a changed text is split at words", () => {
  expect(splitChange("the red fox runs", "the blue fox runs")).toEqual({
    start: "the ",
    old: "red",
    now: "blue",
    end: " fox runs",
  });
  expect(splitChange("4", "4 4")).toEqual({ start: "4", old: "", now: " 4", end: "" });
  expect(splitChange("", "x")).toEqual({ start: "", old: "", now: "x", end: "" });
});
