import { expect, test, vi } from "vitest";
import type { SeriesPage, SeriesQuery, SeriesView } from "./api";
import { SeriesLoader } from "./series-loader";

/** A server with one run of a growing number of points. */
class FakeServer {
  num = 3;
  requests: SeriesQuery[] = [];
  fails = false;

  fetch = async (_run: string, query: SeriesQuery): Promise<SeriesPage> => {
    this.requests.push(query);
    if (this.fails) throw new Error("down");
    const from = Number(query.after ?? 0);
    const x = Array.from({ length: this.num - from }, (_, index) => from + index);
    const lines = x.length
      ? [{ stream: "step", attempt: 0, x, y: x, mean_x: [], mean_y: [], mean_count: [], num_points: x.length }]
      : [];
    return {
      version: String(this.num),
      indexed: 1,
      cursor: String(this.num),
      is_whole: !query.after,
      start: 0,
      series: query.name.map((name): SeriesView => ({
        name,
        last: this.num,
        lines,
        marks: [],
        reason: null,
        num_unplaced: 0,
      })),
    };
  };
}

const everything = { x: "step", low: null, high: null } as const;

test("panels share requests and then load only new points", async () => {
  const server = new FakeServer();
  const loader = new SeriesLoader(server.fetch, everything, 100);
  const seen: Record<string, number[]> = {};
  for (const name of ["loss", "lr"]) loader.subscribe("run", name, (series) => (seen[name] = series.lines[0]?.x ?? []));
  await vi.waitFor(() => expect(seen).toEqual({ loss: [0, 1, 2], lr: [0, 1, 2] }));
  expect(server.requests).toHaveLength(1);
  server.num = 5;
  loader.refresh("run", "5");
  await vi.waitFor(() => expect(seen["lr"]).toEqual([0, 1, 2, 3, 4]));
  expect(server.requests.at(-1)).toMatchObject({ after: "3", name: ["loss", "lr"] });
});

test("unsubscribed panels cause no requests", async () => {
  const server = new FakeServer();
  const loader = new SeriesLoader(server.fetch, everything, 100);
  const stop = loader.subscribe("run", "loss", () => {});
  await vi.waitFor(() => expect(server.requests).toHaveLength(1));
  stop();
  server.num = 9;
  loader.refresh("run", "9");
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(server.requests).toHaveLength(1);
});

test("another range is loaded as a whole", async () => {
  const server = new FakeServer();
  const loader = new SeriesLoader(server.fetch, everything, 100);
  loader.subscribe("run", "loss", () => {});
  await vi.waitFor(() => expect(server.requests).toHaveLength(1));
  loader.setRange({ x: "time", low: 1, high: 2 });
  // extended to the left by its own width, for smoothing
  await vi.waitFor(() =>
    expect(server.requests.at(-1)).toMatchObject({ x: "time", low: 0, high: 2, after: null, points: 200 }),
  );
});

test("a run with a limit is loaded up to it", async () => {
  const server = new FakeServer();
  const loader = new SeriesLoader(server.fetch, everything, 100);
  loader.setLimits(new Map([["run", 7]]));
  server.num = 9; // also a neighbour after the limit
  loader.subscribe("run", "loss", ({ lines }) => {
    if (server.requests.length < 3) expect(lines[0]?.x.at(-1)).toBe(7);
  });
  await vi.waitFor(() => expect(server.requests.at(-1)).toMatchObject({ low: null, high: 7 }));
  loader.setRange({ x: "step", low: 5, high: 9 });
  await vi.waitFor(() => expect(server.requests.at(-1)).toMatchObject({ low: 3, high: 7 }));
  loader.setLimits(new Map());
  await vi.waitFor(() => expect(server.requests.at(-1)).toMatchObject({ low: 1, high: 9, after: null }));
});

test("a line with too many points is loaded as a whole again", async () => {
  const server = new FakeServer();
  const loader = new SeriesLoader(server.fetch, everything, 4);
  loader.subscribe("run", "loss", () => {});
  await vi.waitFor(() => expect(server.requests).toHaveLength(1));
  server.num = 30;
  loader.refresh("run", "30");
  await vi.waitFor(() => expect(server.requests).toHaveLength(3), { timeout: 2000 });
  expect(server.requests.map((query) => query.after ?? null)).toEqual([null, "3", null]);
});

test("a busy series does not starve a later panel", async () => {
  const server = new FakeServer();
  const loader = new SeriesLoader(server.fetch, everything, 1000);
  const seen: Record<string, number> = {};
  const show = (name: string) =>
    loader.subscribe("run", name, (series) => (seen[name] = series.lines[0]?.x.length ?? 0));
  show("loss");
  await vi.waitFor(() => expect(seen["loss"]).toBe(3));
  const growing = setInterval(() => loader.refresh("run", String(++server.num)), 20);
  await new Promise((resolve) => setTimeout(resolve, 200));
  show("lr");
  await new Promise((resolve) => setTimeout(resolve, 1200));
  clearInterval(growing);
  await vi.waitFor(() => expect(seen).toEqual({ loss: server.num, lr: server.num }));
  expect(server.requests.at(-1)?.name.toSorted()).toEqual(["loss", "lr"]);
});

test("a series of another axis is never delivered", async () => {
  const server = new FakeServer();
  const loader = new SeriesLoader(server.fetch, everything, 100);
  loader.subscribe("run", "loss", () => {});
  await vi.waitFor(() => expect(server.requests).toHaveLength(1));
  loader.setRange({ x: "time", low: null, high: null });
  const shown: SeriesView[] = [];
  loader.subscribe("run", "loss", (series) => shown.push(series));
  expect(shown).toEqual([]);
  await vi.waitFor(() => expect(shown.length).toBeGreaterThan(0));
  expect(server.requests.at(-1)?.x).toBe("time");
});

test("a failed request is reported and retried", async () => {
  const server = new FakeServer();
  server.fails = true;
  const errors: (string | null)[] = [];
  const loader = new SeriesLoader(server.fetch, everything, 100, (message) => errors.push(message));
  let known: number[] = [];
  loader.subscribe("run", "loss", (series) => (known = series.lines[0]?.x ?? []));
  await vi.waitFor(() => expect(errors).toEqual(["down"]));
  server.fails = false;
  await vi.waitFor(() => expect(known).toEqual([0, 1, 2]), { timeout: 4000 });
  expect(server.requests.every((query) => query.after === null)).toBe(true);
  expect(errors.at(-1)).toBeNull();
});
