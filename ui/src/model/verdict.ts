/** Which runs are compared with which, for a verdict. */

import type { Json } from "../api";
import { defaultVerdict, type VerdictView } from "./compare-choices";
import { plain } from "./format";

export type Side = "before" | "after" | "out";

/** The most runs that the server compares with others at once. */
export const maxSideRuns = 200;

export interface Sides {
  before: string[];
  after: string[];
}

/** The first run is the one to compare with, unless others are chosen. */
export function splitRuns(runs: string[], { before, out }: VerdictView): Sides {
  const sideOf = (run: string): Side =>
    out.includes(run) ? "out" : (before ?? runs.slice(0, 1)).includes(run) ? "before" : "after";
  return {
    before: runs.filter((run) => sideOf(run) === "before"),
    after: runs.filter((run) => sideOf(run) === "after"),
  };
}

/** Put a run on a side. */
export function moveRun(runs: string[], view: VerdictView, run: string, side: Side): VerdictView {
  const { before } = splitRuns(runs, view);
  const others = before.filter((other) => other !== run);
  return asChoice(runs, {
    before: side === "before" ? runs.filter((each) => each === run || others.includes(each)) : others,
    out: [...view.out.filter((other) => other !== run), ...(side === "out" ? [run] : [])],
  });
}

/** Exchange both sides. */
export const swapSides = (runs: string[], view: VerdictView): VerdictView =>
  asChoice(runs, { before: splitRuns(runs, view).after, out: view.out });

/** The address names no sides if they are the default ones. */
function asChoice(runs: string[], view: VerdictView): VerdictView {
  const isDefault = view.out.length === 0 && view.before?.length === 1 && view.before[0] === runs[0];
  return isDefault ? defaultVerdict : view;
}

const maxValues = 6;

/** The values of a config key as text, the first ones if there are many. */
export function listValues(values: Json[]): string {
  const texts = values.slice(0, maxValues).map(plain);
  const numMore = values.length - texts.length;
  return numMore > 0 ? `${texts.join(", ")} and ${numMore} more` : texts.join(", ");
}

const quote = (text: string): string => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The same comparison as a command. */
export function compareCommand({ before, after }: Sides): string {
  const isPair = before.length === 1 && after.length === 1;
  const names = (runs: string[]): string => runs.map(quote).join(" ");
  return isPair
    ? `tacho compare ${names([...after, ...before])}`
    : `tacho compare ${names(after)} --against ${names(before)}`;
}

export const symbolOf: Record<string, string> = { good: "▲", bad: "▼", same: "=", open: "?" };
