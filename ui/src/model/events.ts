/** One-line descriptions of records for the events page. */

import type { JournalRecord, Json } from "../api";
import { duration, number, plain, quantity, words } from "./format";

export type Tone = "bad" | "warn" | "good" | "";

export function eventTitle(record: JournalRecord): string {
  const name = text(record["name"]);
  switch (record.event) {
    case "event":
      return words(name || "event");
    case "alert":
      return `${statusPrefix(record)}${text(record["title"]) || text(record["rule"]) || name || "alert"}`;
    case "error":
      return text(record["error_type"]) || "error";
    case "telemetry_error":
      return `telemetry: ${words(text(record["kind"]) || "error")}`;
    case "control_change":
      return `${name} ${plain(record["old"])} → ${plain(record["new"])}`;
    case "start":
      return record["resumed"] === true ? "resumed" : "started";
    case "code":
      return typeof record["missing"] === "string" ? `code not captured: ${record["missing"]}` : "code captured";
    case "end":
      return text(record["status"]) || "ended";
    case "log":
      return `end of ${text(record["stream"]) || "output"}`;
    default:
      return words(record.event);
  }
}

export function eventDetail(record: JournalRecord): string {
  const parts: string[] = [];
  const message =
    text(record["error_message"]) || text(record["message"]) || text(record["reason"]) || text(record["evidence"]);
  if (message) parts.push(message);
  if (record.event === "log") parts.push(text(record["text"]).split("\n").at(-1) ?? "");
  if (record.event === "checkpoint") parts.push(text(record["checkpoint_path"]));
  if (record.event === "validation" || record.event === "test" || record.event === "epoch") {
    for (const [name, value] of Object.entries(record)) {
      if (typeof value === "number" && !["time", "global_step"].includes(name)) parts.push(`${name} ${number(value)}`);
    }
  }
  if (typeof record["num_records"] === "number") parts.push(quantity(record["num_records"], "record"));
  if (typeof record["duration_s"] === "number") parts.push(duration(record["duration_s"]));
  return parts.filter(Boolean).join(" · ");
}

export function eventTone(record: JournalRecord): Tone {
  if (record.event === "error") return "bad";
  if (record.event === "alert")
    return text(record["status"]) === "resolved"
      ? "good"
      : record["severity"] === "info"
        ? ""
        : record["severity"] === "warning"
          ? "warn"
          : "bad";
  if (record.event === "telemetry_error") return "warn";
  if (record.event === "end") return record["status"] === "finished" ? "good" : "bad";
  return "";
}

/** Give each record a key that stays the same when newer records arrive; records come newest first. */
export function withKeys(records: JournalRecord[]): [string, JournalRecord][] {
  const seen = new Map<string, number>();
  const found = records.toReversed().map((record): [string, JournalRecord] => {
    const name = `${record.time} ${record.event} ${text(record["name"])}`;
    const number = seen.get(name) ?? 0;
    seen.set(name, number + 1);
    return [`${name} ${number}`, record];
  });
  return found.reverse();
}

export function matches(record: JournalRecord, search: string): boolean {
  // The JSON text covers every field name and value of a record.
  return search === "" || JSON.stringify(record).toLowerCase().includes(search.toLowerCase());
}

/** The status of an alert record, unless it opens the alert. */
function statusPrefix(record: JournalRecord): string {
  const status = text(record["status"]);
  return status === "updated" || status === "resolved" ? `${status}: ` : "";
}

const text = (value: Json | undefined): string => (typeof value === "string" ? value : "");
