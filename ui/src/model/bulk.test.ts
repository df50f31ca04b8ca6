import { expect, test } from "vitest";
import type { RunResult } from "../api";
import { addTag, bulkRequests, parseTags, removeTag, setField, undoRequests } from "./bulk";

const result = (run: string, more: Partial<RunResult> = {}): RunResult => ({
  run,
  error: null,
  name: null,
  undo: [],
  ...more,
});

test("tags are added and removed by a sign", () => {
  expect(parseTags("+paper, -draft  long-run + -")).toEqual([addTag("paper"), removeTag("draft"), addTag("long-run")]);
});

test("requests are split by number and by size, and lose no run", () => {
  const many = Array.from({ length: 1_201 }, (_, index) => `run-${index}`);
  const requests = bulkRequests("annotate", many, [addTag("x")]);
  expect(requests.map((each) => each.runs.length)).toEqual([500, 500, 201]);
  const long = Array.from({ length: 600 }, (_, index) => `${"ü".repeat(200)}${index}`);
  const split = bulkRequests("trash", long);
  expect(split.flatMap((each) => each.runs)).toEqual(long);
  for (const each of split) expect(new TextEncoder().encode(JSON.stringify(each)).length).toBeLessThan(64_000);
  expect(bulkRequests("trash", [])).toEqual([]);
});

test("undo restores each run's own value, and only what succeeded", () => {
  const [before, other] = [[setField("note", "old")], [setField("note", null)]];
  const undo = undoRequests("annotate", [
    result("a", { undo: before }),
    result("b", { undo: other }),
    result("c", { error: "read-only" }),
    result("d", { undo: before }),
  ]);
  expect(undo.map((each) => [each.runs, each.changes])).toEqual([
    [["a", "d"], before],
    [["b"], other],
  ]);
  expect(undoRequests("trash", [result("a", { name: "id1" }), result("b", { error: "running" })])).toMatchObject([
    { action: "restore", runs: ["id1"] },
  ]);
});
