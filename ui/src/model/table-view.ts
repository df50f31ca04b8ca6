/** The view of the table of runs: filter, columns, order and groups. The address contains all of it. */

import type { FieldView } from "../api";

export type Archived = "no" | "only" | "all";
export type Kind = FieldView["kind"];

export interface TableView {
  /** An expression, see docs/runs.md. */
  filter: string;
  /** The columns after the name; null chooses them by the fields of the runs. */
  columns: string[] | null;
  /** Columns that stay visible when the table scrolls sideways. */
  pinned: string[];
  /** A field; with a minus in front, highest first. */
  sort: string;
  group: string[];
  archived: Archived;
  isOnlyDifferent: boolean;
  isColored: boolean;
}

export const newestFirst = "-started";
export const maxGroupFields = 3;
export const maxColumns = 500;
export const defaultTable: TableView = {
  filter: "",
  columns: null,
  pinned: [],
  sort: newestFirst,
  group: [],
  archived: "no",
  isOnlyDifferent: false,
  isColored: false,
};

export function readTable(parameters: URLSearchParams): TableView {
  const columns = unique(parameters.getAll("c")).slice(0, maxColumns);
  const archived = parameters.get("archived");
  return {
    filter: parameters.get("q") ?? "",
    columns: columns.length ? columns : null,
    pinned: unique(parameters.getAll("pin")),
    sort: parameters.get("sort") ?? newestFirst,
    group: unique(parameters.getAll("by")).slice(0, maxGroupFields),
    archived: archived === "only" || archived === "all" ? archived : "no",
    isOnlyDifferent: parameters.get("differ") === "1",
    isColored: parameters.get("color") === "1",
  };
}

export function writeTable(view: TableView, parameters = new URLSearchParams()): URLSearchParams {
  if (view.filter) parameters.set("q", view.filter);
  for (const column of view.columns ?? []) parameters.append("c", column);
  for (const column of view.pinned) parameters.append("pin", column);
  if (view.sort !== newestFirst) parameters.set("sort", view.sort);
  for (const field of view.group) parameters.append("by", field);
  if (view.archived !== "no") parameters.set("archived", view.archived);
  if (view.isOnlyDifferent) parameters.set("differ", "1");
  if (view.isColored) parameters.set("color", "1");
  return parameters;
}

const unique = (names: string[]): string[] => [...new Set(names.filter(Boolean))];

// Columns

const aggregateNames = [
  ...["last", "first", "min", "max", "mean", "median", "tail"],
  ...["at_min", "at_max", "best", "at_best", "nonfinite"],
];
/** How a metric becomes one number per run, in the words of choosers. */
export const aggregateTitles: Record<string, string> = {
  best: "best",
  last: "last",
  tail: "mean of last 10 %",
  min: "lowest",
  max: "highest",
  mean: "mean",
  median: "median",
};
const prefixes = ["config", "summary", "git", "custom"];
const firstColumns = ["loss", "steps", "duration", "started", "tags"];
const maxConfigColumns = 6;

/** The parts of a field: where it comes from, its name, and the aggregate of a metric. */
export function fieldParts(field: string): { prefix: string; name: string; aggregate: string } {
  const [prefix = "", ...rest] = field.split(".");
  if (rest.length && prefixes.includes(prefix)) return { prefix, name: rest.join("."), aggregate: "" };
  const aggregate = rest.at(-1) ?? "";
  if (!aggregateNames.includes(aggregate)) return { prefix: "", name: field, aggregate: "" };
  return { prefix: "", name: field.slice(0, -aggregate.length - 1), aggregate };
}

/** Whether a field is the aggregate of a metric. */
export const isMetric = (field: string): boolean => fieldParts(field).aggregate !== "";

/** The field that says how well a run did. */
export const resultField = (fields: FieldView[]): string =>
  fields.some((each) => each.field === "result") ? "result" : "loss";

/** The orders by result and their titles; none if it is unknown, or differs between runs, whether lower results are better. */
export const resultOrders = (result: string, direction: number): [sort: string, title: string][] =>
  direction === 0 ? [] : [[direction < 0 ? result : `-${result}`, "best first"]];

/** The columns of a table that nobody has configured: the result and what was varied first, then facts. */
export function defaultColumns(fields: FieldView[], hasTags: boolean): string[] {
  const known = new Map(fields.map((each) => [each.field, each]));
  const facts = firstColumns.filter((field) => field !== "tags" || hasTags || known.get(field)?.differs);
  if (known.size === 0) return ["state", ...facts];
  const varied = fields.filter((each) => each.field.startsWith("config.") && each.varies);
  // The keys of a few runs belong to another script.
  const usual = Math.max(0, ...varied.map((each) => each.num_runs)) / 2;
  // What people vary is a number more often than a text. Seeds, names and paths only tell runs apart.
  const rank = (each: FieldView): number => (each.is_label ? 2 : 0) + (each.kind === "number" ? 0 : 1);
  const config = varied.filter((each) => each.num_runs >= usual).sort((a, b) => rank(a) - rank(b));
  return [
    "state",
    ...(known.has("result") ? ["result"] : []),
    ...config.slice(0, maxConfigColumns).map((each) => each.field),
    ...facts.filter((field) => field === "tags" || known.has(field)),
    ...["group", "rating", "note"].filter((field) => known.get(field)?.differs),
  ];
}

/** The columns of a table of groups: what they are grouped by, then what has a mean. */
export function groupColumns(columns: string[], by: string[], fields: FieldView[]): string[] {
  const kinds = new Map(fields.map((each) => [each.field, each.kind]));
  const hasMean = (field: string): boolean =>
    !["text", "list", "bool", "time"].includes(kinds.get(field) ?? (fieldParts(field).prefix ? "text" : "number"));
  return [...by, ...columns.filter((column) => !by.includes(column) && hasMean(column))];
}

/** Pinned columns first, in the order of the columns. */
export const arrange = (columns: string[], pinned: string[]): { pinned: string[]; free: string[] } => ({
  pinned: columns.filter((column) => pinned.includes(column)),
  free: columns.filter((column) => !pinned.includes(column)),
});

/** Move a column to the place of another one. */
export function moveColumn(columns: string[], column: string, target: string): string[] {
  const [from, to] = [columns.indexOf(column), columns.indexOf(target)];
  if (from < 0 || to < 0 || from === to) return columns;
  const others = columns.filter((other) => other !== column);
  return [...others.slice(0, to), column, ...others.slice(to)];
}

/** Move a column by one place: -1 to the left, 1 to the right. */
export function shiftColumn(columns: string[], column: string, by: -1 | 1): string[] {
  const target = columns[columns.indexOf(column) + by];
  return target === undefined ? columns : moveColumn(columns, column, target);
}

export const toggled = (names: string[], name: string): string[] =>
  names.includes(name) ? names.filter((other) => other !== name) : [...names, name];

/** Sort by a column; by the same one again reverses. Numbers start with what is best or highest. */
export function nextSort(sort: string, field: string, kind: Kind, direction: number): string {
  if (sort === field) return `-${field}`;
  if (sort === `-${field}`) return field;
  return kind === "text" || kind === "list" || direction < 0 ? field : `-${field}`;
}

/** The width of a column in pixels, before anyone has changed it. */
export function columnWidth(field: string, kind: Kind): number {
  const fixed: Record<string, number> = {
    state: 132,
    tags: 140,
    note: 240,
    command: 260,
    steps: 80,
    loss: 112,
    result: 112,
  };
  const byKind: Record<Kind, number> = {
    text: 120,
    number: 104,
    time: 104,
    duration: 104,
    share: 80,
    bytes: 90,
    bool: 70,
    list: 150,
  };
  const { prefix, name, aggregate } = fieldParts(field);
  const title = name.length + (aggregate || prefix ? (aggregate || prefix).length + 1 : 0);
  return fixed[field] ?? Math.min(240, Math.max(byKind[kind], title * 6.6 + 34));
}
