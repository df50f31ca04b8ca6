/** Logged tables: which columns are shown, the order of rows, and what differs between two tables. */

import type { Json } from "../api";
import { parseNumber } from "./completions";
import { isEqual } from "./equal";
import { fileOf, indexAt, isObject, type TableRow } from "./media";

export interface TableContent {
  columns: string[];
  rows: TableRow[];
}

export interface TableColumn {
  name: string;
  /** How many rows of the table have a cell in it. */
  numFilled: number;
  /** Whether most rows lack a cell, or one of two compared tables has none at all. */
  isSparse: boolean;
}

/** A row of a comparison, in at least one of both tables. */
export interface RowPair {
  after: TableRow | null;
  before: TableRow | null;
  /** The columns in which both rows differ. */
  changed: string[];
}

export interface TableDiff {
  /** The rows in the order of the later table, then the rows that only the earlier one has. */
  pairs: RowPair[];
  numChanged: number;
  numAdded: number;
  numRemoved: number;
  numEqual: number;
  /** The columns that only one of both tables has; they make no row different. */
  onlyAfter: string[];
  onlyBefore: string[];
}

export type PairState = "changed" | "added" | "removed" | "equal";

/** Which step a table is compared with: none, the step before it, the first one, or a number. */
export type Against = "" | "previous" | "first" | number;

const isFilled = (cell: unknown): boolean => cell !== undefined && cell !== null && cell !== "";

/** All columns: those that most rows have in their order, then sparse ones. */
export function tableColumns(table: TableContent, other: TableContent | null = null): TableColumn[] {
  const names = new Set([...namesOf(table), ...(other ? namesOf(other) : [])]);
  const columns = [...names].map((name) => {
    const numFilled = count(table.rows, name);
    const isHalfEmpty = (content: TableContent): boolean => 2 * count(content.rows, name) < content.rows.length;
    return { name, numFilled, isSparse: isHalfEmpty(table) || (other !== null && isHalfEmpty(other)) };
  });
  return [...columns.filter((column) => !column.isSparse), ...columns.filter((column) => column.isSparse)];
}

const namesOf = (table: TableContent): string[] =>
  table.columns.length ? table.columns : [...new Set(table.rows.flatMap((row) => Object.keys(row)))];

const count = (rows: TableRow[], name: string): number =>
  rows.reduce((sum, row) => sum + Number(isFilled(row[name])), 0);

/** The rows that contain a text, sorted by a column; `-name` sorts in descending order. */
export function chooseRows(rows: TableRow[], search: string, sort: string): TableRow[] {
  return choosePairs(
    rows.map((row) => ({ after: row, before: null, changed: [] })),
    search,
    sort,
  ).flatMap((pair) => (pair.after ? [pair.after] : []));
}

/** The pairs of which a row contains a text, sorted by the later row, or the only one. */
export function choosePairs(pairs: RowPair[], search: string, sort: string): RowPair[] {
  const text = search.trim().toLowerCase();
  const matches = text ? pairs.filter((pair) => hasText(pair.after, text) || hasText(pair.before, text)) : pairs;
  if (!sort) return matches;
  const [name, sign] = sort.startsWith("-") ? [sort.slice(1), -1] : [sort, 1];
  const cellOf = (pair: RowPair): unknown => (pair.after ?? pair.before)?.[name];
  return [...matches].sort((a, b) => compareCells(cellOf(a), cellOf(b), sign));
}

const hasText = (row: TableRow | null, text: string): boolean =>
  row !== null && Object.values(row).some((cell) => !isObject(cell) && String(cell).toLowerCase().includes(text));

/** Numbers before texts, and NaN and missing cells always last. */
function compareCells(a: unknown, b: unknown, sign: number): number {
  const [rankA, rankB] = [cellRank(a), cellRank(b)];
  if (rankA !== rankB) return rankA - rankB;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return typeof a === "string" && typeof b === "string" ? sign * a.localeCompare(b) : 0;
}

function cellRank(cell: unknown): number {
  if (typeof cell === "number") return 0;
  if (cell === "NaN" || cell === null || cell === undefined) return 3;
  return typeof cell === "string" ? 1 : 2;
}

// Comparing two tables ------------------------------------------------------------------------------------------------

export function readAgainst(text: string | null): Against {
  if (text === "previous" || text === "first") return text;
  return text !== null && /^-?\d+$/.test(text) ? Number(text) : "";
}

/** The step that a table is compared with; null if there is no other one. */
export function stepAgainst(steps: number[], step: number, against: Against): number | null {
  const index = indexAt(steps, step);
  const target =
    against === "" ? undefined : against === "first" ? steps[0] : against === "previous" ? steps[index - 1] : against;
  const other = typeof against === "number" ? steps[indexAt(steps, against)] : target;
  return other === undefined || other === steps[index] ? null : other;
}

/**
 * The column that joins the rows of two tables: its cells differ within each table, and most of them are in both. Empty
 * if there is none.
 */
export function chooseKey(columns: string[], after: TableRow[], before: TableRow[]): string {
  let [best, mostShared] = ["", 0];
  for (const column of columns) {
    const [ids, otherIds] = [uniqueIds(after, column), uniqueIds(before, column)];
    if (!ids || !otherIds) continue;
    const numShared = [...ids].filter((id) => otherIds.has(id)).length;
    if (numShared > mostShared) [best, mostShared] = [column, numShared];
  }
  return best;
}

/** The ids of all cells of a column; null if one is missing or repeated. */
function uniqueIds(rows: TableRow[], column: string): Set<string> | null {
  const ids = new Set<string>();
  for (const row of rows) {
    const id = cellId(row[column]);
    if (!id || ids.has(id)) return null;
    ids.add(id);
  }
  return ids;
}

/** A text that is the same for equal cells; empty if the cell cannot join rows. */
function cellId(cell: unknown): string {
  if (isFilled(cell) && !isObject(cell) && !Array.isArray(cell)) return `${typeof cell} ${String(cell)}`;
  return fileOf(cell)?.sha256 ?? "";
}

/**
 * What differs between two tables. Rows with the same cell in the key column are the same row, in their order if there
 * are several; without a key, rows at the same position.
 */
export function diffTables(after: TableRow[], before: TableRow[], key: string): TableDiff {
  const [names, otherNames] = [filledNames(after), filledNames(before)];
  const columns = [...names].filter((name) => otherNames.has(name));
  const unmatched = new Map<string, TableRow[]>();
  before.toReversed().forEach((row, index) => {
    const id = key ? cellId(row[key]) : String(before.length - 1 - index);
    const rows = unmatched.get(id);
    if (rows) rows.push(row);
    else unmatched.set(id, [row]);
  });
  const matched = new Set<TableRow>();
  const pairs = after.map((row, index): RowPair => {
    const other = unmatched.get(key ? cellId(row[key]) : String(index))?.pop() ?? null;
    if (other) matched.add(other);
    const changed = other ? columns.filter((column) => !isSameCell(row[column], other[column])) : [];
    return { after: row, before: other, changed };
  });
  for (const row of before) if (!matched.has(row)) pairs.push({ after: null, before: row, changed: [] });
  const states = pairs.map(stateOf);
  const countOf = (state: PairState): number => states.filter((each) => each === state).length;
  return {
    pairs,
    numChanged: countOf("changed"),
    numAdded: countOf("added"),
    numRemoved: countOf("removed"),
    numEqual: countOf("equal"),
    onlyAfter: before.length ? [...names].filter((name) => !otherNames.has(name)) : [],
    onlyBefore: after.length ? [...otherNames].filter((name) => !names.has(name)) : [],
  };
}

const filledNames = (rows: TableRow[]): Set<string> =>
  new Set(rows.flatMap((row) => Object.keys(row).filter((name) => isFilled(row[name]))));

export function stateOf(pair: RowPair): PairState {
  if (!pair.before) return "added";
  if (!pair.after) return "removed";
  return pair.changed.length ? "changed" : "equal";
}

/** The columns with numbers in both rows of any pair. */
export function comparableColumns(pairs: RowPair[], columns: string[]): string[] {
  return columns.filter((name) => name && pairs.some((pair) => changeOf(pair, name) !== null));
}

/** The pairs by how much a number changed, in either direction, largest change first; without two numbers last. */
export function sortByChange(pairs: RowPair[], column: string): RowPair[] {
  if (!column) return pairs;
  const sized = pairs.map((pair) => ({ pair, change: changeOf(pair, column) ?? -1 }));
  return sized.sort((a, b) => (a.change === b.change ? 0 : b.change - a.change)).map(({ pair }) => pair);
}

/** The size of a change; to or from NaN or infinity it is infinite. Null without two numbers. */
function changeOf(pair: RowPair, column: string): number | null {
  const [before, after] = [pair.before, pair.after].map((row) => parseNumber(row?.[column] as Json | undefined));
  if (before === null || before === undefined || after === null || after === undefined) return null;
  if (before === after) return 0;
  return typeof before === "number" && typeof after === "number" ? Math.abs(after - before) : Infinity;
}

function isSameCell(a: unknown, b: unknown): boolean {
  const [file, other] = [fileOf(a), fileOf(b)];
  if (file || other) return file?.sha256 === other?.sha256;
  return isEqual(a ?? null, b ?? null);
}

/** A text before and after a change, in parts: the same start, what differs, and the same end. */
export function splitChange(before: string, after: string): { start: string; old: string; now: string; end: string } {
  const [old, now] = [wordsOf(before), wordsOf(after)];
  const shorter = Math.min(old.length, now.length);
  let start = 0;
  while (start < shorter && old[start] === now[start]) start++;
  let end = 0;
  while (end < shorter - start && old[old.length - 1 - end] === now[now.length - 1 - end]) end++;
  const join = (parts: string[], from: number, to: number): string => parts.slice(from, to).join("");
  return {
    start: join(now, 0, start),
    old: join(old, start, old.length - end),
    now: join(now, start, now.length - end),
    end: join(now, now.length - end, now.length),
  };
}

const wordsOf = (text: string): string[] => text.match(/\s+|[\p{L}\p{N}_]+|./gsu) ?? [];
