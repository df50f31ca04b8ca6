import { expect, test } from "vitest";
import type { CompletionRow } from "../api";
import {
  asNumber,
  asText,
  folded,
  foldedChars,
  inOrder,
  isLong,
  keyed,
  nextSort,
  numericColumns,
  pieces,
  placeOf,
} from "./completions";

const rows: CompletionRow[] = [
  { step: 3, prompt: "c", reward: 0.5 },
  { step: 2, prompt: "b", reward: "NaN", label: "good" },
  { step: 2, prompt: "b2", reward: "Infinity" },
  { step: 1, prompt: "a" },
  { step: 1, prompt: "a2", reward: -1 },
];

test("a column is of numbers if all that is in it is", () => {
  expect(numericColumns(["step", "prompt", "reward", "label", "nowhere"], rows)).toEqual(new Set(["step", "reward"]));
  expect(numericColumns(["mixed"], [{ mixed: 1 }, { mixed: "one" }])).toEqual(new Set());
  expect(numericColumns(["mixed"], [{ mixed: 1 }, { mixed: null }])).toEqual(new Set(["mixed"]));
});

test("numbers that JSON does not have are numbers, and texts that read like them are texts", () => {
  expect(asNumber("-Infinity")).toBe("-Infinity");
  expect(asNumber("\\NaN")).toBeNull();
  expect(asText("\\NaN")).toBe("NaN");
  expect(asText("\\\\NaN")).toBe("\\NaN");
  expect(asText("\\frac")).toBe("\\frac");
  expect(asText(undefined)).toBe("");
  expect(asText(true)).toBe("true");
});

test("rows are sorted by numbers, with what is missing last either way", () => {
  const prompts = (sort: string) => inOrder(rows, sort).map((row) => row["prompt"]);
  expect(prompts("-reward")).toEqual(["b2", "c", "a2", "b", "a"]);
  expect(prompts("reward")).toEqual(["a2", "c", "b2", "b", "a"]);
  expect(prompts("")).toEqual(["c", "b", "b2", "a", "a2"]);
  expect(prompts("-step")).toEqual(["c", "b", "b2", "a", "a2"]); // equals stay as they were
});

test("a click on a head sorts down, up, and then not at all", () => {
  expect(nextSort("", "reward")).toBe("-reward");
  expect(nextSort("-reward", "reward")).toBe("reward");
  expect(nextSort("reward", "reward")).toBe("");
  expect(nextSort("reward", "step")).toBe("-step");
});

test("matches are marked in any case, and nothing of the text is lost", () => {
  expect(pieces("Grey jacket, grey sky", "GREY")).toEqual([
    { text: "Grey", isMatch: true },
    { text: " jacket, ", isMatch: false },
    { text: "grey", isMatch: true },
    { text: " sky", isMatch: false },
  ]);
  for (const search of ["", "e", "(", "[a-z]", "\\", ".*", "$&", "İ", "a/b-c"]) {
    const text = "Weird (text) [a-z] \\frac .* $& İstanbul a/b-c";
    expect(
      pieces(text, search)
        .map((piece) => piece.text)
        .join(""),
    ).toBe(text);
  }
  expect(pieces("[a-z]", "[a-z]")).toEqual([{ text: "[a-z]", isMatch: true }]);
  expect(pieces("", "x")).toEqual([]);
});

test("a long text is folded to its beginning, or to what is searched", () => {
  const text = `${"a".repeat(3_000)}needle${"b".repeat(3_000)}`;
  expect(isLong("short")).toBe(false);
  expect(folded("short", "x")).toBe("short");
  expect(folded(text, "")).toBe(`${"a".repeat(foldedChars)}…`);
  expect(folded(text, "nowhere")).toBe(folded(text, ""));
  expect(folded(text, "NEEDLE")).toContain("needle");
  expect(folded(text, "NEEDLE").length).toBe(foldedChars + 2);
  const end = `${"a".repeat(3_000)}needle`;
  expect(folded(end, "needle").endsWith("needle")).toBe(true);
});

test("a row keeps its name when newer ones come, and equal rows have names of their own", () => {
  const before = keyed(rows);
  const after = keyed([{ step: 4, prompt: "d" }, rows[0]!, ...rows]);
  expect(after.slice(2).map(([name]) => name)).toEqual(before.map(([name]) => name));
  expect(new Set(after.map(([name]) => name)).size).toBe(after.length);
});

test("a step has a place on the slider, all steps have the last one", () => {
  expect(placeOf([5, 10, 20], 10)).toBe(1);
  expect(placeOf([5, 10, 20], 14)).toBe(1);
  expect(placeOf([5, 10, 20], 99)).toBe(2);
  expect(placeOf([5, 10, 20], null)).toBe(2);
  expect(placeOf([], 4)).toBe(0);
});
