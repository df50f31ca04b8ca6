/** Samples of what a model was given and what came of it: which columns, in which order, and how a text is shown. */

import type { CompletionRow, Json, Num } from "../api";
import { plain } from "./format";

/** Longer texts are folded. */
export const foldedChars = 400;
const contextChars = 80;

export interface Piece {
  text: string;
  isMatch: boolean;
}

const notFinite: readonly Json[] = ["NaN", "Infinity", "-Infinity"];

/** A cell as a number, or null if it is none. */
export function asNumber(value: Json | undefined): Num | null {
  return typeof value === "number" || notFinite.includes(value ?? null) ? (value as Num) : null;
}

/** A cell as a text; one that merely reads like a number that JSON does not have came with a backslash. */
export function asText(value: Json | undefined): string {
  if (value === undefined || value === null) return "";
  if (typeof value !== "string") return plain(value);
  return value.startsWith("\\") && notFinite.includes(value.replace(/^\\+/, "")) ? value.slice(1) : value;
}

/** The columns in which every cell that is there is a number, and there is one. */
export function numericColumns(columns: string[], rows: CompletionRow[]): Set<string> {
  return new Set(
    columns.filter((column) => {
      const cells = rows.map((row) => row[column]).filter((cell) => cell !== undefined && cell !== null);
      return cells.length > 0 && cells.every((cell) => asNumber(cell) !== null);
    }),
  );
}

/** Rows by a column of numbers, `-` before its name for the highest first; as they came if there is no such column. */
export function inOrder(rows: CompletionRow[], sort: string): CompletionRow[] {
  const isDown = sort.startsWith("-");
  const column = sort.replace(/^-/, "");
  if (column === "") return rows;
  const order = (a: CompletionRow, b: CompletionRow): number => {
    const [left, right] = [rank(a[column]), rank(b[column])];
    if (left === null || right === null) return Number(left === null) - Number(right === null);
    return left === right ? 0 : (left < right ? -1 : 1) * (isDown ? -1 : 1);
  };
  return rows.toSorted(order);
}

/** What is missing comes last, whichever way; so does NaN, which is no more than another. */
function rank(cell: Json | undefined): number | null {
  const value = asNumber(cell);
  return value === null || value === "NaN" ? null : Number(value);
}

/** The highest first, then the lowest first, then as they came. */
export function nextSort(sort: string, column: string): string {
  if (sort === `-${column}`) return column;
  return sort === column ? "" : `-${column}`;
}

/** A text cut where it says what is searched. */
export function pieces(text: string, search: string): Piece[] {
  const found: Piece[] = [];
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
  return text.length > foldedChars * 1.25; // to fold a few words away helps nobody
}

/** The part of a long text that is shown: its beginning, or what is around the first thing that was searched. */
export function folded(text: string, search: string): string {
  if (!isLong(text)) return text;
  const [match] = search === "" ? [] : text.matchAll(pattern(search));
  const at = match && match.index + match[0].length > foldedChars ? match.index : 0;
  const start = Math.max(0, Math.min(at - contextChars, text.length - foldedChars));
  const end = Math.min(text.length, start + foldedChars);
  return `${start > 0 ? "…" : ""}${text.slice(start, end)}${end < text.length ? "…" : ""}`;
}

/** Give each row, the newest first, a name that it keeps when others come. */
export function keyed(rows: CompletionRow[]): [string, CompletionRow][] {
  const seen = new Map<string, number>();
  const found = rows.toReversed().map((row): [string, CompletionRow] => {
    const name = JSON.stringify(row).slice(0, 1_000);
    const number = seen.get(name) ?? 0;
    seen.set(name, number + 1);
    return [`${name} ${number}`, row];
  });
  return found.reverse();
}

/** Where on a slider over the steps one of them lies; the nearest, if it is not among them. */
export function placeOf(steps: number[], step: number | null): number {
  if (step === null || steps.length === 0) return Math.max(0, steps.length - 1);
  let best = 0;
  for (const [index, known] of steps.entries()) {
    if (Math.abs(known - step) < Math.abs((steps[best] ?? Infinity) - step)) best = index;
  }
  return best;
}
