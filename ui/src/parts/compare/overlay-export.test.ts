import { expect, test } from "vitest";
import { overlayCsv, pictureSvg } from "./overlay-export";
import type { Scene } from "./overlay-paint";

const theme = {
  panel: "#fff",
  text: "#000",
  muted: "#888",
  grid: "#ddd",
  good: "#0f0",
  warn: "#fa0",
  bad: "#f00",
};
const empty: Scene = {
  axis: "step",
  x: { low: 0, high: 2, isLog: false },
  y: { low: 0, high: 2, isLog: false },
  bands: [],
  lines: [],
  marks: [],
  alerts: [],
  expected: null,
  theme,
};
const svgOf = (scene: Partial<Scene>): string =>
  pictureSvg({ title: "loss", width: 600, height: 300, legend: [], scene: { ...empty, ...scene } });
/** The shapes of a colour: lines begin with M and L, rectangles have h and v. */
const shapes = (svg: string, colour: string): string[] =>
  [...svg.matchAll(/<path d="([^"]*)" fill="(#\w+)"/g)].filter(([, , fill]) => fill === colour).map(([, d]) => d ?? "");

test("an SVG has the title, all lines and the legend, escaped", () => {
  const svg = pictureSvg({
    title: "loss <b> & co",
    width: 600,
    height: 300,
    legend: Array.from({ length: 70 }, (_, index) => ({ label: `run ${index}`, colour: "#123456" })),
    scene: {
      ...empty,
      bands: [{ colour: "#abcdef", x: [0, 1], low: [0, 1], high: [1, 2] }],
      lines: [
        { id: "a", points: { x: [0, 1, 2], y: [1, null, 5] }, colour: "#ff0000", width: 1, alpha: 0.5, dash: [4, 3] },
      ],
      marks: [{ x: 1, kind: "NaN", count: 1 }],
    },
  });
  expect(svg).toContain("loss &lt;b&gt; &amp; co");
  expect(svg).toContain('stroke="#ff0000"');
  expect(svg).toContain('stroke-dasharray="4 3"');
  expect(svg).toContain("run 59<");
  expect(svg).not.toContain("run 60<");
  expect(svg).toContain("and 10 more<");
  expect(svg).not.toContain("NaN");
});

test("points at the first and the last position are painted whole", () => {
  const line = { id: "a", points: { x: [0, 2], y: [1, 1] }, colour: "#ff0000", width: 2, alpha: 1, dash: [] };
  const svg = svgOf({ lines: [line] });
  const [, left, width] = (/<clipPath[^>]*><path d="M(\S+) \S+h(\S+)v/.exec(svg) ?? []).map(Number);
  const grid = [...svg.matchAll(/M(\S+) (\S+)L(\S+) \2/g)].map(([, from, , to]) => [Number(from), Number(to)]);
  const [from = Number.NaN, to = Number.NaN] = grid[0] ?? [];
  expect(left).toBeLessThanOrEqual(from - 3);
  expect((left ?? 0) + (width ?? 0)).toBeGreaterThanOrEqual(to + 3);
});

test("alerts are a line, a triangle and a tint, in the colour of their severity", () => {
  const alert = (tone: "" | "warn" | "bad", x: number, end: number | null) => ({ run: "a", title: "", tone, x, end });
  const svg = svgOf({ alerts: [alert("warn", 0.5, 1), alert("bad", 1.5, null), alert("", -3, -2)] });
  const [tint = "", line = "", triangle = ""] = shapes(svg, theme.warn);
  expect(shapes(svg, theme.warn)).toHaveLength(3);
  expect(tint).toMatch(/h\d/);
  expect(line).toMatch(/h1v/);
  expect(triangle).toMatch(/L.*L.*Z$/);
  expect(shapes(svg, theme.bad)).toHaveLength(3);
  // An alert that was resolved before the visible range.
  expect(shapes(svg, theme.muted)).toEqual([]);
  // A logarithmic axis has no place for step 0: the tint begins at its left edge.
  const log = svgOf({ x: { low: 1, high: 100, isLog: true }, alerts: [alert("bad", 0, null)] });
  expect(shapes(log, theme.bad)).toHaveLength(1);
  expect(log).not.toContain("NaN");
});

test("expected values are a band up to the edge on a side without a limit", () => {
  const svg = svgOf({ expected: { low: null, high: 1 } });
  expect(shapes(svg, theme.good)).toHaveLength(1);
  expect(svg.match(/stroke="#0f0"/g)).toHaveLength(1);
});

test("a point between two gaps is a dot", () => {
  const y = Array.from({ length: 100 }, (_, index): number | null => (index < 90 ? 1 : null)).with(95, 1.5);
  const points = { x: y.map((_, index) => index / 50), y };
  const line = { id: "a", points, colour: "#123456", width: 1, alpha: 1, dash: [] };
  expect(shapes(svgOf({ lines: [line] }), "#123456")).toHaveLength(1);
});

test("a CSV file has a row per point, and no formulas", () => {
  const line = (run: string, y: (number | null)[]) => ({
    run,
    label: run,
    points: { x: y.map((_, index) => index), y },
    isRaw: true,
    isBehind: false,
    isEarlier: false,
  });
  const member = { id: "g", label: "lr=1, wd=2", runs: ["=a", "b"], isGroup: true, colour: "" };
  const lines = [line("=a", [1, null]), line("b", [0.5])];
  expect(overlayCsv("loss", "step", lines, [], {})).toBe("run,step,loss\r\n'=a,0,1\r\n'=a,1,\r\nb,0,0.5\r\n");
  const mean = { x: [0], mean: [0.75], min: [0.5], max: [1], count: [2] };
  expect(overlayCsv("loss", "step", lines, [member], { g: mean }).split("\r\n")).toEqual([
    "run,group,step,loss,min,max,num_runs",
    '\'=a,"lr=1, wd=2",0,1,,,',
    '\'=a,"lr=1, wd=2",1,,,,',
    'b,"lr=1, wd=2",0,0.5,,,',
    ',"lr=1, wd=2",0,0.75,0.5,1,2',
    "",
  ]);
});
