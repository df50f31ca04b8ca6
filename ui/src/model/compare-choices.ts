/** What is chosen on the tabs of the compare page next to the charts, as the address holds it. */

import type { Brushes } from "./sweep";

export interface DifferencesView {
  /** The results beside the config; empty: chosen by the server. */
  columns: string[];
  /** Whether config keys are shown that are equal in all runs or do not describe the training. */
  showsAll: boolean;
  reference: string | null;
  /** The line that rows are sorted by; with a minus in front, highest first. Empty: the order of the runs. */
  sort: string;
  /** The sections below the table that are open. */
  open: string[];
  /** The run whose lines of code are compared with those of the reference. */
  other: string | null;
}

export interface SweepView {
  /** The result that colours the runs; null: chosen by the server. */
  result: string | null;
  brushes: Brushes;
  /** Keys that the user showed or hid; the others are shown while there is room. */
  keys: Readonly<Record<string, boolean>>;
}

export interface VerdictView {
  /** The runs to compare with; null: the repeats of the first one. */
  before: string[] | null;
  /** Runs that are left out. */
  out: string[];
  /** Whether quantities that are not comparable are judged, too. */
  isForced: boolean;
}

export const defaultDifferences: DifferencesView = {
  columns: [],
  showsAll: false,
  reference: null,
  sort: "",
  open: [],
  other: null,
};
export const defaultSweep: SweepView = { result: null, brushes: {}, keys: {} };
export const defaultVerdict: VerdictView = { before: null, out: [], isForced: false };

const unique = (names: string[]): string[] => [...new Set(names.filter(Boolean))];

export function readNumber(text: string | null): number | null {
  const value = text === null || text.trim() === "" ? Number.NaN : Number(text);
  return Number.isFinite(value) ? value : null;
}

export function readDifferences(parameters: URLSearchParams): DifferencesView {
  return {
    columns: unique(parameters.getAll("column")),
    showsAll: parameters.get("all") === "1",
    reference: parameters.get("ref") || null,
    sort: parameters.get("sort") ?? "",
    open: unique(parameters.getAll("open")),
    other: parameters.get("lines") || null,
  };
}

export function writeDifferences(view: DifferencesView, parameters: URLSearchParams): void {
  for (const field of view.columns) parameters.append("column", field);
  if (view.showsAll) parameters.set("all", "1");
  if (view.reference !== null) parameters.set("ref", view.reference);
  if (view.sort) parameters.set("sort", view.sort);
  for (const section of view.open) parameters.append("open", section);
  if (view.other !== null) parameters.set("lines", view.other);
}

export function readSweep(parameters: URLSearchParams): SweepView {
  const keys = parameters.getAll("key").filter((text) => /^[+-]./.test(text));
  return {
    result: parameters.get("result") || null,
    brushes: Object.fromEntries(parameters.getAll("brush").flatMap(readBrush)),
    keys: Object.fromEntries(keys.map((text) => [text.slice(1), text.startsWith("+")])),
  };
}

/** A brush is written as `LOW,HIGH,AXIS`, because the name of an axis may contain anything. */
function readBrush(text: string): [string, { low: number; high: number }][] {
  const [low = "", high = "", ...rest] = text.split(",");
  const [from, to] = [Number(low || NaN), Number(high || NaN)];
  return rest.length > 0 && from >= 0 && from <= to && to <= 1 ? [[rest.join(","), { low: from, high: to }]] : [];
}

export function writeSweep(view: SweepView, parameters: URLSearchParams): void {
  const share = (value: number): string => String(Number(value.toFixed(4)));
  if (view.result !== null) parameters.set("result", view.result);
  for (const [name, { low, high }] of Object.entries(view.brushes))
    parameters.append("brush", `${share(low)},${share(high)},${name}`);
  for (const [name, isShown] of Object.entries(view.keys)) parameters.append("key", `${isShown ? "+" : "-"}${name}`);
}

export function readVerdict(parameters: URLSearchParams): VerdictView {
  // An empty name: no run is to be compared with, yet.
  const before = parameters.has("before") ? unique(parameters.getAll("before")) : null;
  return { before, out: unique(parameters.getAll("out")), isForced: parameters.get("anyway") === "1" };
}

export function writeVerdict(view: VerdictView, parameters: URLSearchParams): void {
  if (view.before?.length === 0) parameters.set("before", "");
  for (const run of view.before ?? []) parameters.append("before", run);
  for (const run of view.out) parameters.append("out", run);
  if (view.isForced) parameters.set("anyway", "1");
}
