/** Which runs are compared with which, for a verdict. */

export type Side = "before" | "after" | "out";

export interface Sides {
  before: string[];
  after: string[];
}

/** The first run is the one to compare with, unless others are chosen. */
export function splitRuns(runs: string[], chosen: Record<string, Side>): Sides {
  const sideOf = (run: string, index: number): Side => chosen[run] ?? (index === 0 ? "before" : "after");
  return {
    before: runs.filter((run, index) => sideOf(run, index) === "before"),
    after: runs.filter((run, index) => sideOf(run, index) === "after"),
  };
}

/** The sides that an address names; without any, those of `splitRuns`. */
export function readSides(runs: string[], named: Record<string, string[]>): Record<string, Side> {
  const before = named["before"] ?? [];
  const out = named["out"] ?? [];
  if (before.length === 0 && out.length === 0) return {};
  return Object.fromEntries(
    runs.map((run) => [run, out.includes(run) ? "out" : before.includes(run) ? "before" : "after"]),
  );
}

/** Exchange both sides. */
export function swapSides(sides: Sides): Record<string, Side> {
  return Object.fromEntries([
    ...sides.before.map((run) => [run, "after"] as const),
    ...sides.after.map((run) => [run, "before"] as const),
  ]);
}

const quote = (text: string): string => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The same comparison as a command. */
export function compareCommand({ before, after }: Sides): string {
  const isPair = before.length === 1 && after.length === 1;
  const names = (runs: string[]): string => runs.map(quote).join(" ");
  return isPair
    ? `tacho compare ${names([...before, ...after])}`
    : `tacho compare ${names(after)} --against ${names(before)}`;
}

export const symbolOf: Record<string, string> = { good: "▲", bad: "▼", same: "=", open: "?" };
