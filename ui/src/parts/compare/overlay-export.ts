/** Saves an overlay as PNG, SVG or CSV. */

import type { GroupLine } from "../../api";
import { type AxisName, metricOf } from "../../model/axis-name";
import type { ChartLine } from "../../model/chart-lines";
import type { Member } from "../../model/overlay";
import { paintPicture, type Picture, pictureHeight } from "./overlay-paint";
import { SvgContext } from "./svg-context";

export function pictureSvg(picture: Picture): string {
  const context = new SvgContext(picture.width, pictureHeight(picture));
  paintPicture(context, picture);
  return context.text();
}

/** A PNG with twice the resolution of the screen's pixels, for documents. */
export async function picturePng(picture: Picture): Promise<Blob | null> {
  const ratio = 2;
  const canvas = document.createElement("canvas");
  canvas.width = picture.width * ratio;
  canvas.height = pictureHeight(picture) * ratio;
  const context = canvas.getContext("2d");
  if (!context) return null;
  context.scale(ratio, ratio);
  paintPicture(context, picture);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** The recorded points of a chart: a row per point, and for groups, a row per position of the mean. */
export function overlayCsv(
  metric: string,
  axis: AxisName,
  lines: ChartLine[],
  members: Member[],
  groups: Record<string, GroupLine>,
): string {
  const isGrouped = members.some((member) => member.isGroup);
  const labels = new Map(members.flatMap(({ label, runs }) => runs.map((run) => [run, label] as const)));
  const rows: (string | number | null)[][] = [];
  const group = (label: string | undefined): (string | null)[] => (isGrouped ? [label ?? ""] : []);
  const rest = isGrouped ? [null, null, null] : [];
  for (const { run, points } of lines)
    points.x.forEach((x, index) => rows.push([run, ...group(labels.get(run)), x, points.y[index] ?? null, ...rest]));
  for (const { id, label } of members) {
    const line = groups[id];
    line?.x.forEach((x, index) =>
      rows.push([
        "",
        ...group(label),
        x,
        line.mean[index] ?? null,
        line.min[index] ?? null,
        line.max[index] ?? null,
        line.count[index] ?? null,
      ]),
    );
  }
  const x = metricOf(axis) ?? axis;
  const head = isGrouped ? ["run", "group", x, metric, "min", "max", "num_runs"] : ["run", x, metric];
  return [head, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** A value of a CSV file. Text that a spreadsheet would run as a formula gets an apostrophe in front. */
function cell(value: string | number | null): string {
  if (typeof value === "number") return String(value);
  const text = value === null ? "" : /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export interface SavedChart {
  name: string;
  axis: AxisName;
  picture: Picture;
  /** The recorded lines, never smoothed. */
  lines: ChartLine[];
  members: Member[];
  groupLines: Record<string, GroupLine>;
}

/** Save a chart as a file with the name of its metric. */
export async function saveChart(format: "png" | "svg" | "csv", chart: SavedChart): Promise<void> {
  const { name, axis, picture, lines, members, groupLines } = chart;
  const content = {
    png: () => picturePng(picture),
    svg: () => new Blob([pictureSvg(picture)], { type: "image/svg+xml" }),
    csv: () => new Blob([overlayCsv(name, axis, lines, members, groupLines)], { type: "text/csv" }),
  };
  download(`${name.replaceAll(/[^\w.-]+/g, "_")}.${format}`, await content[format]());
}

function download(name: string, blob: Blob | null): void {
  if (!blob) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
