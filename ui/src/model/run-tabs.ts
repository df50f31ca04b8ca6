/** Which pages of a run have something to show. */

import type { RunDetail, RunState } from "../api";
import { hasEnded } from "./alerts";
import { type Tab, tabs } from "./route";

/** The tabs of a run, without those that are empty and will stay so. The open one is always among them. */
export function tabsWithContent(
  detail: Pick<RunDetail, "num_records" | "num_media_lost" | "indexed" | "goodput"> | null,
  state: RunState,
  hasOutput: boolean,
  current: Tab,
): Tab[] {
  if (detail === null || detail.indexed < 1) return [...tabs];
  const has = (...kinds: string[]): boolean => kinds.some((kind) => (detail.num_records[kind] ?? 0) > 0);
  const isOver = hasEnded(state);
  const isEmpty: Partial<Record<Tab, boolean>> = {
    timeline: isOver && detail.goodput === null && !has("span", "span_start", "span_stop", "profile"),
    log: isOver && !hasOutput && !has("log"),
    completions: !has("completions"),
    control: isOver && !has("control_change"),
    ranks: !has("rank"),
    media: !has("media", "histograms") && detail.num_media_lost === 0,
  };
  return tabs.filter((tab) => tab === current || !isEmpty[tab]);
}
