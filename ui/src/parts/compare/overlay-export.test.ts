import { expect, test } from "vitest";
import { overlayCsv, pictureSvg } from "./overlay-export";

const theme = { panel: "#fff", text: "#000", muted: "#888", grid: "#ddd", bad: "#f00" };

test("an SVG has the title, all lines and the legend, escaped", () => {
  const svg = pictureSvg({
    title: "loss <b> & co",
    width: 600,
    height: 300,
    legend: Array.from({ length: 70 }, (_, index) => ({ label: `run ${index}`, colour: "#123456" })),
    scene: {
      axis: "step",
      x: { low: 0, high: 2, isLog: false },
      y: { low: 0, high: 2, isLog: false },
      bands: [{ colour: "#abcdef", x: [0, 1], low: [0, 1], high: [1, 2] }],
      lines: [
        { id: "a", points: { x: [0, 1, 2], y: [1, null, 5] }, colour: "#ff0000", width: 1, alpha: 0.5, dash: [4, 3] },
      ],
      marks: [{ x: 1, kind: "NaN", count: 1 }],
      theme,
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
