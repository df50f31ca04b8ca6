/** Filters and sorts the list of runs. */

import type { RunSummary } from "../api";

export const columns = [
  "name",
  "state",
  "progress",
  "step",
  "steps_per_sec",
  "train_loss",
  "duration_s",
  "started",
  "host",
] as const;
export type Column = (typeof columns)[number];

export function select(runs: RunSummary[], search: string, states: string[], sort: string): RunSummary[] {
  const words = search.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter(
    (run) => (states.length === 0 || states.includes(run.state)) && words.every((word) => text(run).includes(word)),
  );
  const isDescending = sort.startsWith("-");
  const column = columns.find((known) => known === sort.replace(/^-/, "")) ?? "started";
  return found.sort(
    (a, b) => order(a, b, column, isDescending) || a.name.localeCompare(b.name, "en", { numeric: true }),
  );
}

function text(run: RunSummary): string {
  return [run.name, run.state, run.host ?? "", run.session_tag ?? "", run.reason ?? "", ...run.tags]
    .join("\n")
    .toLowerCase();
}

/** Compare runs by a column; missing values come last in both directions. */
function order(a: RunSummary, b: RunSummary, column: Column, isDescending: boolean): number {
  const [left, right] = [key(a, column), key(b, column)];
  if (left === null || right === null) return Number(left === null) - Number(right === null);
  const sign =
    typeof left === "number" && typeof right === "number" ? left - right : compareTexts(String(left), String(right));
  return isDescending ? -sign : sign;
}

const compareTexts = (a: string, b: string): number => a.localeCompare(b, "en", { numeric: true });

function key(run: RunSummary, column: Column): number | string | null {
  const value = run[column];
  return typeof value === "string" && column === "train_loss" ? Infinity : value;
}

/** The time since the last step of a running run, if it is much longer than a step takes; else null. */
export function stalled_s(run: RunSummary, now: number): number | null {
  if (run.state !== "running" || run.stepped === null) return null;
  const since = now - run.stepped;
  return since > Math.max(15, run.steps_per_sec ? 10 / run.steps_per_sec : 60) ? since : null;
}

export function nextSort(sort: string, column: Column): string {
  if (sort === column) return `-${column}`;
  if (sort === `-${column}`) return column;
  return column === "name" || column === "host" || column === "state" ? column : `-${column}`;
}
