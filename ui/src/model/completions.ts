/** Rows of the completions table: parsing, sorting, searching and folding. */

import type { CompletionRow, Json, Num } from "../api";
import { plain } from "./format";

/** Longer texts are folded to this length. */
export const maxFoldedChars = 400;
const contextChars = 80;

export interface TextPart {
  text: string;
  isMatch: boolean;
}

const nonFinite: readonly Json[] = ["NaN", "Infinity", "-Infinity"];

/** A cell as a number; null if it is not a number. */
export function parseNumber(value: Json | undefined): Num | null {
  return typeof value === "number" || nonFinite.includes(value ?? null) ? (value as Num) : null;
}

/** A cell as text. The server escapes a text such as "NaN" with a backslash, to tell it from the number. */
export function parseText(value: Json | undefined): string {
  if (value === undefined || value === null) return "";
  if (typeof value !== "string") return plain(value);
  return value.startsWith("\\") && nonFinite.includes(value.replace(/^\\+/, "")) ? value.slice(1) : value;
}

/** The columns that contain numbers only, and at least one. */
export function numericColumns(columns: string[], rows: CompletionRow[]): Set<string> {
  return new Set(
    columns.filter((column) => {
      const cells = rows.map((row) => row[column]).filter((cell) => cell !== undefined && cell !== null);
      return cells.length > 0 && cells.every((cell) => parseNumber(cell) !== null);
    }),
  );
}

/** Sort rows by a column of numbers; `-column` sorts highest first, and an empty string keeps the order. */
export function sortRows(rows: CompletionRow[], sort: string): CompletionRow[] {
  const isDescending = sort.startsWith("-");
  const column = sort.replace(/^-/, "");
  if (column === "") return rows;
  const order = (a: CompletionRow, b: CompletionRow): number => {
    const [left, right] = [sortValue(a[column]), sortValue(b[column])];
    if (left === null || right === null) return Number(left === null) - Number(right === null);
    return left === right ? 0 : (left < right ? -1 : 1) * (isDescending ? -1 : 1);
  };
  return rows.toSorted(order);
}

/** The sort value of a cell; null for missing values and NaN, which come last in both directions. */
function sortValue(cell: Json | undefined): number | null {
  const value = parseNumber(cell);
  return value === null || value === "NaN" ? null : Number(value);
}

/** Cycle through highest first, lowest first and unsorted. */
export function nextSort(sort: string, column: string): string {
  if (sort === `-${column}`) return column;
  return sort === column ? "" : `-${column}`;
}

/** Split a text at the matches of a search. */
export function splitMatches(text: string, search: string): TextPart[] {
  const found: TextPart[] = [];
  let end = 0;
  for (const match of search === "" ? [] : text.matchAll(pattern(search))) {
    if (match.index > end) found.push({ text: text.slice(end, match.index), isMatch: false });
    end = match.index + match[0].length;
    found.push({ text: match[0], isMatch: true });
  }
  if (end < text.length) found.push({ text: text.slice(end), isMatch: false });
  return found;
}

function pattern(search: string): RegExp {
  return new RegExp(
    search.replace(/[.*+?^${}()|[\]\\/-]/g, (mark) => `\\${mark}`),
    "gi",
  );
}

export function isLong(text: string): boolean {
  return text.length > maxFoldedChars * 1.25; // hiding a few words is not worth a button
}

/** Shorten a long text to its beginning, or to the surroundings of the first match. */
export function foldText(text: string, search: string): string {
  if (!isLong(text)) return text;
  const [match] = search === "" ? [] : text.matchAll(pattern(search));
  const at = match && match.index + match[0].length > maxFoldedChars ? match.index : 0;
  const start = Math.max(0, Math.min(at - contextChars, text.length - maxFoldedChars));
  const end = Math.min(text.length, start + maxFoldedChars);
  return `${start > 0 ? "…" : ""}${text.slice(start, end)}${end < text.length ? "…" : ""}`;
}

/** Give each row a key that stays the same when newer rows arrive; rows come newest first. */
export function withKeys(rows: CompletionRow[]): [string, CompletionRow][] {
  const seen = new Map<string, number>();
  const found = rows.toReversed().map((row): [string, CompletionRow] => {
    const name = Object.values(row).map(plain).join("\n").slice(0, 1_000);
    const number = seen.get(name) ?? 0;
    seen.set(name, number + 1);
    return [`${name} ${number}`, row];
  });
  return found.reverse();
}

/** The index of the step nearest to `step`; the last index if `step` is null. */
export function sliderIndex(steps: number[], step: number | null): number {
  if (step === null || steps.length === 0) return Math.max(0, steps.length - 1);
  let best = 0;
  for (const [index, known] of steps.entries()) {
    if (Math.abs(known - step) < Math.abs((steps[best] ?? Infinity) - step)) best = index;
  }
  return best;
}
