import { expect, test } from "vitest";
import type { CompletionRow } from "../api";
import {
  parseNumber,
  parseText,
  foldText,
  maxFoldedChars,
  sortRows,
  isLong,
  withKeys,
  nextSort,
  numericColumns,
  splitMatches,
  sliderIndex,
} from "./completions";

const rows: CompletionRow[] = [
  { step: 3, prompt: "c", reward: 0.5 },
  { step: 2, prompt: "b", reward: "NaN", label: "good" },
  { step: 2, prompt: "b2", reward: "Infinity" },
  { step: 1, prompt: "a" },
  { step: 1, prompt: "a2", reward: -1 },
];

test("a column is numeric if all its cells are", () => {
  expect(numericColumns(["step", "prompt", "reward", "label", "nowhere"], rows)).toEqual(new Set(["step", "reward"]));
  expect(numericColumns(["mixed"], [{ mixed: 1 }, { mixed: "one" }])).toEqual(new Set());
  expect(numericColumns(["mixed"], [{ mixed: 1 }, { mixed: null }])).toEqual(new Set(["mixed"]));
});

test("NaN is a number, an escaped NaN is a text", () => {
  expect(parseNumber("-Infinity")).toBe("-Infinity");
  expect(parseNumber("\\NaN")).toBeNull();
  expect(parseText("\\NaN")).toBe("NaN");
  expect(parseText("\\\\NaN")).toBe("\\NaN");
  expect(parseText("\\frac")).toBe("\\frac");
  expect(parseText(undefined)).toBe("");
  expect(parseText(true)).toBe("true");
});

test("rows sort by number, with missing values last", () => {
  const prompts = (sort: string) => sortRows(rows, sort).map((row) => row["prompt"]);
  expect(prompts("-reward")).toEqual(["b2", "c", "a2", "b", "a"]);
  expect(prompts("reward")).toEqual(["a2", "c", "b2", "b", "a"]);
  expect(prompts("")).toEqual(["c", "b", "b2", "a", "a2"]);
  expect(prompts("-step")).toEqual(["c", "b", "b2", "a", "a2"]); // equal values keep their order
});

test("clicking a header cycles through the sort orders", () => {
  expect(nextSort("", "reward")).toBe("-reward");
  expect(nextSort("-reward", "reward")).toBe("reward");
  expect(nextSort("reward", "reward")).toBe("");
  expect(nextSort("reward", "step")).toBe("-step");
});

test("matches ignore case, and no text is lost", () => {
  expect(splitMatches("Grey jacket, grey sky", "GREY")).toEqual([
    { text: "Grey", isMatch: true },
    { text: " jacket, ", isMatch: false },
    { text: "grey", isMatch: true },
    { text: " sky", isMatch: false },
  ]);
  for (const search of ["", "e", "(", "[a-z]", "\\", ".*", "$&", "İ", "a/b-c"]) {
    const text = "Weird (text) [a-z] \\frac .* $& İstanbul a/b-c";
    expect(
      splitMatches(text, search)
        .map((piece) => piece.text)
        .join(""),
    ).toBe(text);
  }
  expect(splitMatches("[a-z]", "[a-z]")).toEqual([{ text: "[a-z]", isMatch: true }]);
  expect(splitMatches("", "x")).toEqual([]);
});

test("a long text is folded to its start or to the match", () => {
  const text = `${"a".repeat(3_000)}needle${"b".repeat(3_000)}`;
  expect(isLong("short")).toBe(false);
  expect(foldText("short", "x")).toBe("short");
  expect(foldText(text, "")).toBe(`${"a".repeat(maxFoldedChars)}…`);
  expect(foldText(text, "nowhere")).toBe(foldText(text, ""));
  expect(foldText(text, "NEEDLE")).toContain("needle");
  expect(foldText(text, "NEEDLE").length).toBe(maxFoldedChars + 2);
  const end = `${"a".repeat(3_000)}needle`;
  expect(foldText(end, "needle").endsWith("needle")).toBe(true);
});

test("row keys are stable, and equal rows get distinct keys", () => {
  const before = withKeys(rows);
  const after = withKeys([{ step: 4, prompt: "d" }, rows[0]!, ...rows]);
  expect(after.slice(2).map(([name]) => name)).toEqual(before.map(([name]) => name));
  expect(new Set(after.map(([name]) => name)).size).toBe(after.length);
});

test("a step maps to the nearest slider index", () => {
  expect(sliderIndex([5, 10, 20], 10)).toBe(1);
  expect(sliderIndex([5, 10, 20], 14)).toBe(1);
  expect(sliderIndex([5, 10, 20], 99)).toBe(2);
  expect(sliderIndex([5, 10, 20], null)).toBe(2);
  expect(sliderIndex([], 4)).toBe(0);
});
