/** Which runs are compared with which, for a verdict. */

import type { Json } from "../api";
import type { VerdictView } from "./compare-choices";
import { plain } from "./format";

export type Side = "before" | "after" | "out";

/** The most runs that the server compares with others at once. */
export const maxSideRuns = 200;

export interface Sides {
  before: string[];
  after: string[];
}

/** Runs whose configs differ only in their seeds, with a text for what sets them apart from other groups. */
export interface ConfigGroup {
  label: string;
  runs: string[];
}

/** The groups of the server, in the order of the runs; the label names the keys that differ. */
export function configGroups(runs: string[], by: string[], groups: { key: Json[]; runs: string[] }[]): ConfigGroup[] {
  const position = (group: { runs: string[] }): number => runs.findIndex((run) => group.runs.includes(run));
  return groups
    .toSorted((a, b) => position(a) - position(b))
    .map((group) => ({
      label: by
        .map((field, index) => `${field.replace(/^config\./, "")} ${plain(group.key[index] ?? null)}`)
        .join(", "),
      runs: runs.filter((run) => group.runs.includes(run)),
    }));
}

/** Two groups against each other; runs of other groups are left out. */
export function chooseGroups(view: VerdictView, groups: ConfigGroup[], before: number, after: number): VerdictView {
  const out = groups.flatMap((group, index) => (index === before || index === after ? [] : group.runs));
  return { ...view, before: groups[before]?.runs ?? [], out };
}

/** The chosen sides. By default, the repeats of the first run against those of the next run with another config. */
export function fillSides(runs: string[], view: VerdictView, groups: ConfigGroup[]): VerdictView {
  if (view.before !== null || view.out.length > 0) return view;
  return groups.length > 1 ? chooseGroups(view, groups, 0, 1) : { ...view, before: runs.slice(0, 1) };
}

export function splitRuns(runs: string[], { before, out }: VerdictView): Sides {
  const sideOf = (run: string): Side => (out.includes(run) ? "out" : before?.includes(run) ? "before" : "after");
  return {
    before: runs.filter((run) => sideOf(run) === "before"),
    after: runs.filter((run) => sideOf(run) === "after"),
  };
}

/** Put a run on a side. */
export function moveRun(runs: string[], view: VerdictView, run: string, side: Side): VerdictView {
  const { before } = splitRuns(runs, view);
  const others = before.filter((other) => other !== run);
  return {
    ...view,
    before: side === "before" ? runs.filter((each) => each === run || others.includes(each)) : others,
    out: [...view.out.filter((other) => other !== run), ...(side === "out" ? [run] : [])],
  };
}

/** Exchange both sides. */
export const swapSides = (runs: string[], view: VerdictView): VerdictView => ({
  ...view,
  before: splitRuns(runs, view).after,
});

const maxValues = 6;

/** The values of a config key as text, the first ones if there are many. */
export function listValues(values: Json[]): string {
  const texts = values.slice(0, maxValues).map(plain);
  const numMore = values.length - texts.length;
  return numMore > 0 ? `${texts.join(", ")} and ${numMore} more` : texts.join(", ");
}

const quote = (text: string): string => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The same comparison as a command. */
export function compareCommand({ before, after }: Sides, isForced = false): string {
  const isPair = before.length === 1 && after.length === 1;
  const names = (runs: string[]): string => runs.map(quote).join(" ");
  const command = isPair
    ? `tacho compare ${names([...after, ...before])}`
    : `tacho compare ${names(after)} --against ${names(before)}`;
  return isForced ? `${command} --anyway` : command;
}

export const symbolOf: Record<string, string> = { good: "▲", bad: "▼", same: "=", open: "?" };
