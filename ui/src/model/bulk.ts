/** Actions on several runs: requests that fit into a body, and the requests that undo them. */

import type { AnnotationChange, BulkRequest, RunResult } from "../api";

const maxRuns = 500;
/** A body has at most 64 KiB. */
const maxBytes = 48_000;

export const setField = (field: string, value: AnnotationChange["value"]): AnnotationChange => ({
  ...noChange,
  op: "set",
  field,
  value,
});
export const addTag = (tag: string): AnnotationChange => ({ ...noChange, op: "add", field: "tags", value: tag });
export const removeTag = (tag: string): AnnotationChange => ({ ...noChange, op: "remove", field: "tags", value: tag });
export const markStep = (global_step: number, text: string): AnnotationChange => ({
  ...noChange,
  op: "mark",
  global_step,
  text,
});
export const unmark = (id: string): AnnotationChange => ({ ...noChange, op: "unmark", value: id });

const noChange: AnnotationChange = { op: "set", field: "", value: null, global_step: null, text: "", id: null };

/** The changes of tags that a text such as `+paper -draft long-run` asks for. */
export function parseTags(text: string): AnnotationChange[] {
  const words = text.split(/[\s,]+/).filter((word) => word.replace(/^[+-]/, ""));
  return words.map((word) => (word.startsWith("-") ? removeTag(word.slice(1)) : addTag(word.replace(/^\+/, ""))));
}

/** One or more requests for an action on runs. */
export function bulkRequests(
  action: BulkRequest["action"],
  runs: string[],
  changes: AnnotationChange[] = [],
): BulkRequest[] {
  const requests: BulkRequest[] = [];
  const size = (value: unknown): number => new TextEncoder().encode(JSON.stringify(value)).length + 1;
  const base = size(changes);
  let bytes = 0;
  for (const run of runs) {
    const last = requests.at(-1);
    bytes += size(run);
    if (last && last.runs.length < maxRuns && bytes <= maxBytes) last.runs.push(run);
    else {
      requests.push({ action, runs: [run], filter: null, changes, force: false });
      bytes = base + size(run);
    }
  }
  return requests;
}

/** Requests that undo an action: what to change back, or what to restore from the trash. */
export function undoRequests(action: BulkRequest["action"], results: RunResult[]): BulkRequest[] {
  const done = results.filter((result) => result.error === null);
  if (action === "trash") {
    const removed = done.flatMap((result) => result.name ?? []);
    return bulkRequests("restore", removed);
  }
  const groups = new Map<string, RunResult[]>();
  for (const result of done) {
    const key = JSON.stringify(result.undo);
    if (result.undo.length) groups.set(key, [...(groups.get(key) ?? []), result]);
  }
  return [...groups.values()].flatMap((same) => {
    const names = same.map((result) => result.run);
    return bulkRequests("annotate", names, same[0]?.undo);
  });
}
