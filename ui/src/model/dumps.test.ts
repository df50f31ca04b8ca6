import { expect, test } from "vitest";
import type { DumpView } from "../api";
import { dumpsWithoutAlert, layerRows, memoryUses, outputText, stackText } from "./dumps";

test("layers that are not finite come first, then the largest gradients", () => {
  const layer = (name: string, gradient: number | string, non_finite = 0) => ({
    name,
    weight: { absmax: 1 },
    gradient: { absmax: gradient, non_finite },
  });
  const layers = [layer("a", 1), layer("b", 5), layer("c", "NaN", 3), "odd"];
  const rows = layerRows({ layers: { layers } });
  expect(rows.map(({ name }) => name)).toEqual(["c", "b", "a"]);
  expect(rows[0]).toMatchObject({ weight: 1, gradient: NaN, update: null, numNotFinite: 3 });
});

test("parts that are missing or odd have no rows", () => {
  for (const content of [{}, { layers: [] }, { layers: null, memory: 3, stacks: { threads: "x" } }]) {
    expect(layerRows(content)).toEqual([]);
    expect(memoryUses(content)).toEqual([]);
    expect(stackText(content)).toBe("");
    expect(outputText(content)).toBe("");
  }
});

test("the last output is one text", () => {
  expect(outputText({ output: { lines: ["a", "b"] } })).toBe("a\nb");
});

test("uses of memory have shares", () => {
  const uses = memoryUses({ memory: { uses_bytes: { parameters: 1, activations: 3, cached: 0 } } });
  expect(uses).toEqual([
    { name: "activations", bytes: 3, share: 0.75 },
    { name: "parameters", bytes: 1, share: 0.25 },
  ]);
});

test("a dump belongs to its alert if the page has it", () => {
  const dumps = ["a", "b", null].map((alert_id) => ({ alert_id }) as DumpView);
  expect(dumpsWithoutAlert(dumps, ["a"]).map(({ alert_id }) => alert_id)).toEqual(["b", null]);
});
