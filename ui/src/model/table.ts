/** The list of runs: which are shown, and in which order. */

import type { RunLine } from "../api";

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

export function select(runs: RunLine[], search: string, states: string[], sort: string): RunLine[] {
  const words = search.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter(
    (run) => (states.length === 0 || states.includes(run.state)) && words.every((word) => text(run).includes(word)),
  );
  const isDown = sort.startsWith("-");
  const column = columns.find((known) => known === sort.replace(/^-/, "")) ?? "started";
  return found.sort((a, b) => order(a, b, column, isDown) || a.name.localeCompare(b.name, "en", { numeric: true }));
}

function text(run: RunLine): string {
  return [run.name, run.state, run.host ?? "", run.session_tag ?? "", run.reason ?? "", ...run.tags]
    .join("\n")
    .toLowerCase();
}

/** What is missing comes last, whichever way the column is sorted. */
function order(a: RunLine, b: RunLine, column: Column, isDown: boolean): number {
  const [left, right] = [key(a, column), key(b, column)];
  if (left === null || right === null) return Number(left === null) - Number(right === null);
  const sign =
    typeof left === "number" && typeof right === "number" ? left - right : compareTexts(String(left), String(right));
  return isDown ? -sign : sign;
}

const compareTexts = (a: string, b: string): number => a.localeCompare(b, "en", { numeric: true });

function key(run: RunLine, column: Column): number | string | null {
  const value = run[column];
  return typeof value === "string" && column === "train_loss" ? Infinity : value;
}

/** How long a running loop has made no step, if that is much longer than a step takes. */
export function silence_s(run: RunLine, now: number): number | null {
  if (run.state !== "running" || run.stepped === null) return null;
  const silence = now - run.stepped;
  return silence > Math.max(15, run.steps_per_sec ? 10 / run.steps_per_sec : 60) ? silence : null;
}

export function nextSort(sort: string, column: Column): string {
  if (sort === column) return `-${column}`;
  if (sort === `-${column}`) return column;
  return column === "name" || column === "host" || column === "state" ? column : `-${column}`;
}
