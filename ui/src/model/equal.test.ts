import { expect, test } from "vitest";
import { isEqual, keepEqual } from "./equal";

test("equality compares content, not identity or key order", () => {
  expect(isEqual({ a: [1, { b: null }], c: NaN }, { c: NaN, a: [1, { b: null }] })).toBe(true);
  expect(isEqual([], [])).toBe(true);
});

test("different content, types and missing keys are not equal", () => {
  expect(isEqual([1, 2], [2, 1])).toBe(false);
  expect(isEqual([1], [1, 2])).toBe(false);
  expect(isEqual([], {})).toBe(false);
  expect(isEqual({ a: undefined }, { b: undefined })).toBe(false);
  expect(isEqual({ a: 1 }, { a: "1" })).toBe(false);
  expect(isEqual(null, {})).toBe(false);
});

test("a kept value is the same object until its content changes", () => {
  let names = ["a"];
  const kept = keepEqual(() => [...names]);
  const first = kept();
  expect(kept()).toBe(first);
  names = ["a", "b"];
  expect(kept()).toEqual(["a", "b"]);
  expect(first).toEqual(["a"]);
});
