/** Which lines a chart of a metric is made of. */

import type { Line, Series } from "../api";
import { isSchedule } from "./groups";
import { joined, type Points, smooth } from "./series";

export interface RunLineDrawn {
  run: string;
  label: string;
  points: Points;
  /** Whether it is what was recorded, and not smoothed. */
  isRaw: boolean;
  /** Whether it stands behind a smoothed one. */
  isBehind: boolean;
  /** Whether a later attempt went on from it. */
  isEarlier: boolean;
}

/** The recorded line of each attempt of each run, and before it the smoothed one where that says something. */
export function drawn(name: string, runs: string[], series: Record<string, Series>, smoothing: number): RunLineDrawn[] {
  return runs.flatMap((run) => {
    const { lines: recorded = [], marks = [] } = series[run] ?? {};
    const lines = together(recorded);
    const last = Math.max(...lines.map((line) => line.attempt));
    return lines.flatMap((line) => {
      const isBehind = smoothing > 0 && isNoisy(name, line);
      const raw = {
        run,
        label: `${run} ${line.stream} ${line.attempt}`,
        points: line,
        isRaw: true,
        isBehind,
        isEarlier: line.attempt < last,
      };
      if (!isBehind) return [raw];
      return [
        raw,
        { ...raw, label: `${raw.label} smooth`, points: smooth(line, smoothing, marks), isRaw: false, isBehind: false },
      ];
    });
  });
}

/** What is recorded both with steps and between them, such as memory in use, is one line. */
function together(lines: Line[]): Line[] {
  return lines.reduce<Line[]>((found, line) => {
    const place = found.findIndex((other) => other.attempt === line.attempt && isSampled(other) && isSampled(line));
    return place < 0 ? [...found, line] : found.with(place, joined(found[place] as Line, line));
  }, []);
}

const isSampled = (line: Line): boolean => line.stream === "step" || line.stream === "system";

/** Whether there are many points that go up and down: not of a schedule, and not of what is a mean already. */
function isNoisy(name: string, line: Line): boolean {
  return ["step", "system"].includes(line.stream) && line.num_points > 20 && !isSchedule(name);
}
