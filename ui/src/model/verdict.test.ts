import { expect, test } from "vitest";
import { compareCommand, readSides, splitRuns, swapSides } from "./verdict";

test("the first run is compared with the others", () => {
  expect(splitRuns(["a", "b", "c"], {})).toEqual({ before: ["a"], after: ["b", "c"] });
  expect(splitRuns(["a", "b", "c"], { b: "before", c: "out" })).toEqual({ before: ["a", "b"], after: [] });
});

test("sides are exchanged", () => {
  const swapped = swapSides({ before: ["a"], after: ["b"] });
  expect(splitRuns(["a", "b"], swapped)).toEqual({ before: ["b"], after: ["a"] });
});

test("the command compares the same runs", () => {
  expect(compareCommand({ before: ["a"], after: ["b"] })).toBe("tacho compare a b");
  expect(compareCommand({ before: ["a", "x y"], after: ["b"] })).toBe("tacho compare b --against a 'x y'");
});

test("an address names the sides", () => {
  const runs = ["a", "b", "c"];
  expect(readSides(runs, { before: [], out: [] })).toEqual({});
  expect(splitRuns(runs, readSides(runs, { before: ["c"], out: ["a"] }))).toEqual({ before: ["c"], after: ["b"] });
});
