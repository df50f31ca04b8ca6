/** Builds the marks of the timeline from records: checkpoints, validations, alerts, errors and events. */

import type { JournalRecord, Json } from "../api";
import type { TimeRange } from "./time-range";

/** In ascending importance: a group of marks is drawn as its most important kind. */
export const markKinds = ["event", "validation", "checkpoint", "control_change", "alert", "error"] as const;
export type MarkKind = (typeof markKinds)[number];

export interface TimelineMark {
  time: number;
  kind: MarkKind;
  label: string;
}

export interface MarkGroup {
  time: number;
  kind: MarkKind;
  marks: TimelineMark[];
}

/** Return the marks of a run, sorted by time. */
export function buildMarks(records: JournalRecord[]): TimelineMark[] {
  const found: TimelineMark[] = [];
  for (const record of records) {
    const kind = markKind(record);
    if (kind === null || !Number.isFinite(record.time)) continue;
    const label = markLabel(record, kind).replace(/\s+/g, " ").trim();
    found.push({ time: record.time, kind, label: label.length > 160 ? `${label.slice(0, 159)}…` : label });
  }
  return found.sort((a, b) => a.time - b.time);
}

function markKind(record: JournalRecord): MarkKind | null {
  const name = text(record["name"]);
  if (record.event === "alert" && record["status"] === "updated") return null; // the record that opened it has a mark
  if (record.event === "event" && name === "save_checkpoint_success") return "checkpoint";
  return record.event === "test" ? "validation" : (markKinds.find((kind) => kind === record.event) ?? null);
}

function markLabel(record: JournalRecord, kind: MarkKind): string {
  const at = typeof record["global_step"] === "number" ? ` at step ${record["global_step"]}` : "";
  if (kind === "control_change") return `${text(record["name"])}: ${text(record["old"])} → ${text(record["new"])}`;
  if (kind === "error") return `${text(record["error_type"]) || "error"}: ${text(record["error_message"])}${at}`;
  if (kind === "checkpoint") return `checkpoint${at}${record["is_best"] === true ? " (best)" : ""}`;
  if (kind === "validation") return `${record.event}${at}${results(record)}`;
  const description = ["title", "message", "rule", "name"]
    .map((field) => text(record[field]))
    .find((value) => value !== "");
  if (kind !== "alert") return `${description ?? kind}${at}`;
  const began = record["status"] === "resolved" ? "resolved" : text(record["severity"]) || kind;
  return `${began}: ${description ?? kind}${/\bstep \d/.test(description ?? "") ? "" : at}`;
}

function results(record: JournalRecord): string {
  const found: string[] = [];
  for (const [name, value] of Object.entries(record)) {
    if (/^(val|test)_/.test(name) && typeof value === "number") found.push(`${name} ${Number(value.toPrecision(4))}`);
  }
  const few = found.slice(0, 3);
  return few.length > 0 ? `: ${few.join(", ")}` : "";
}

const text = (value: Json | undefined): string => (typeof (value ?? {}) === "object" ? "" : String(value));

/** Group marks that are closer than some pixels. Groups start at fixed times, so that they are stable while panning. */
export function groupMarks(marks: TimelineMark[], view: TimeRange, width: number, gapPx = 26): MarkGroup[] {
  const gapSeconds = ((view.high - view.low) / Math.max(1, width)) * gapPx;
  const groups: MarkGroup[] = [];
  for (let first = 0, next = 0; first < marks.length; first = next) {
    const { time } = marks[first]!;
    if (time > view.high + gapSeconds) break;
    while (next < marks.length && (next === first || marks[next]!.time < time + gapSeconds)) next += 1;
    if (time < view.low - gapSeconds) continue;
    const together = marks.slice(first, next);
    const rank = together.reduce((most, mark) => Math.max(most, markKinds.indexOf(mark.kind)), 0);
    groups.push({ time, kind: markKinds[rank]!, marks: together });
  }
  return groups;
}
