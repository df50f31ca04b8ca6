/** The lines of a chart: the recorded points of each attempt and run, and their smoothed versions. */

import type { Line, SeriesView } from "../api";
import { isAscending } from "./axis-name";
import { isSchedule } from "./metric-groups";
import { defaultWeight, joinLines, type Points, smooth } from "./series";

export interface ChartLine {
  run: string;
  label: string;
  points: Points;
  /** The recorded points, not smoothed. */
  isRaw: boolean;
  /** Drawn faintly behind a smoothed line. */
  isBehind: boolean;
  /** A later attempt continues it. */
  isEarlier: boolean;
}

/** Return the recorded line of each attempt, and a smoothed line where the points are noisy. */
export function buildChartLines(
  name: string,
  runs: string[],
  series: Record<string, SeriesView>,
  smoothing: number | null,
): ChartLine[] {
  return runs.flatMap((run) => {
    const { lines: recorded = [], marks = [] } = series[run] ?? {};
    const lines = joinSampledLines(name === "epoch" ? withoutRepeats(recorded) : recorded);
    const last = Math.max(...lines.map((line) => line.attempt));
    return lines.flatMap((line) => {
      const weight = smoothing ?? defaultWeight(line.num_points);
      const isBehind = weight > 0 && isNoisy(name, line);
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
        { ...raw, label: `${raw.label} smooth`, points: smooth(line, weight, marks), isRaw: false, isBehind: false },
      ];
    });
  });
}

/** The epoch is recorded with steps and again at the end of epochs and with validations: the steps say it all. */
function withoutRepeats(lines: Line[]): Line[] {
  const ofSteps = lines.filter((line) => line.stream === "step");
  return ofSteps.length > 0 ? ofSteps : lines;
}

/** Join lines recorded with steps and between steps, such as memory in use, into one. */
function joinSampledLines(lines: Line[]): Line[] {
  return lines.reduce<Line[]>((found, line) => {
    const index = found.findIndex((other) => other.attempt === line.attempt && canJoin(other, line));
    return index < 0 ? [...found, line] : found.with(index, joinLines(found[index] as Line, line));
  }, []);
}

/** On an axis that goes back, a joined line could not be drawn in the order of steps. */
const canJoin = (first: Line, second: Line): boolean =>
  isSampled(first) && isSampled(second) && isAscending(first.x) && isAscending(second.x);

const isSampled = (line: Line): boolean => line.stream === "step" || line.stream === "system";

/** Whether to smooth a line: it has many points in order, and they are neither a schedule nor means already. */
function isNoisy(name: string, line: Line): boolean {
  return ["step", "system"].includes(line.stream) && line.num_points > 20 && !isSchedule(name) && isAscending(line.x);
}
