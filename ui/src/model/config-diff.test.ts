import { expect, test } from "vitest";
import { compare, flatten } from "./config-diff";

test("configs are compared setting by setting", () => {
  expect([...flatten({ a: { b: 1, c: [] }, d: {} })]).toEqual([
    ["a.b", 1],
    ["a.c", []],
    ["d", {}],
  ]);
  expect([...flatten({ "a.b": 1, a: { b: 2 } }).keys()]).toEqual(['"a.b"', "a.b"]);
  const entries = compare({ lr: 1, same: [1], gone: null }, { lr: 2, same: [1], extra: "x" });
  expect(entries.filter((entry) => entry.isDifferent).map((entry) => entry.path)).toEqual(["lr", "gone", "extra"]);
  expect(compare({ lr: 1 }, null)[0]?.isDifferent).toBe(false);
});
