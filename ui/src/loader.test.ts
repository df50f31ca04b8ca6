import { expect, test, vi } from "vitest";
import type { Series, ViewQuery, Views } from "./api";
import { SeriesLoader } from "./loader";

/** A server with one growing run: as many points as it was told. */
class Growing {
  num = 3;
  asked: ViewQuery[] = [];
  fails = false;

  fetch = async (_run: string, query: ViewQuery): Promise<Views> => {
    this.asked.push(query);
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
      series: query.names.map((name): Series => ({ name, last: this.num, lines, marks: [] })),
    };
  };
}

const everything = { x: "step", low: null, high: null } as const;

test("panels are loaded together, whole once, and then only what is new", async () => {
  const server = new Growing();
  const loader = new SeriesLoader(server.fetch, everything, 100);
  const seen: Record<string, number[]> = {};
  for (const name of ["loss", "lr"]) loader.subscribe("run", name, (series) => (seen[name] = series.lines[0]?.x ?? []));
  await vi.waitFor(() => expect(seen).toEqual({ loss: [0, 1, 2], lr: [0, 1, 2] }));
  expect(server.asked).toHaveLength(1);
  server.num = 5;
  loader.renew("run", "5");
  await vi.waitFor(() => expect(seen["lr"]).toEqual([0, 1, 2, 3, 4]));
  expect(server.asked.at(-1)).toMatchObject({ after: "3", names: ["loss", "lr"] });
});

test("nothing is asked for panels that nobody sees", async () => {
  const server = new Growing();
  const loader = new SeriesLoader(server.fetch, everything, 100);
  const stop = loader.subscribe("run", "loss", () => {});
  await vi.waitFor(() => expect(server.asked).toHaveLength(1));
  stop();
  server.num = 9;
  loader.renew("run", "9");
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(server.asked).toHaveLength(1);
});

test("another view is fetched whole", async () => {
  const server = new Growing();
  const loader = new SeriesLoader(server.fetch, everything, 100);
  loader.subscribe("run", "loss", () => {});
  await vi.waitFor(() => expect(server.asked).toHaveLength(1));
  loader.setView({ x: "time", low: 1, high: 2 });
  // … and as much again to its left, so that smoothing has a past there
  await vi.waitFor(() =>
    expect(server.asked.at(-1)).toMatchObject({ x: "time", low: 0, high: 2, after: null, points: 200 }),
  );
});

test("a line that has grown too long is fetched anew, as a picture of the whole", async () => {
  const server = new Growing();
  const loader = new SeriesLoader(server.fetch, everything, 4);
  loader.subscribe("run", "loss", () => {});
  await vi.waitFor(() => expect(server.asked).toHaveLength(1));
  server.num = 30;
  loader.renew("run", "30");
  await vi.waitFor(() => expect(server.asked).toHaveLength(3), { timeout: 2000 });
  expect(server.asked.map((query) => query.after ?? null)).toEqual([null, "3", null]);
});

test("a panel that came later does not wait for ever behind one that always has something new", async () => {
  const server = new Growing();
  const loader = new SeriesLoader(server.fetch, everything, 1000);
  const seen: Record<string, number> = {};
  const show = (name: string) =>
    loader.subscribe("run", name, (series) => (seen[name] = series.lines[0]?.x.length ?? 0));
  show("loss");
  await vi.waitFor(() => expect(seen["loss"]).toBe(3));
  const growing = setInterval(() => loader.renew("run", String(++server.num)), 20);
  await new Promise((resolve) => setTimeout(resolve, 200));
  show("lr");
  await new Promise((resolve) => setTimeout(resolve, 1200));
  clearInterval(growing);
  await vi.waitFor(() => expect(seen).toEqual({ loss: server.num, lr: server.num }));
  expect(server.asked.at(-1)?.names.toSorted()).toEqual(["loss", "lr"]);
});

test("a series of another axis is never shown", async () => {
  const server = new Growing();
  const loader = new SeriesLoader(server.fetch, everything, 100);
  loader.subscribe("run", "loss", () => {});
  await vi.waitFor(() => expect(server.asked).toHaveLength(1));
  loader.setView({ x: "time", low: null, high: null });
  const shown: Series[] = [];
  loader.subscribe("run", "loss", (series) => shown.push(series));
  expect(shown).toEqual([]);
  await vi.waitFor(() => expect(shown.length).toBeGreaterThan(0));
  expect(server.asked.at(-1)?.x).toBe("time");
});

test("a server that fails is told of and asked again, even if nothing new is recorded", async () => {
  const server = new Growing();
  server.fails = true;
  const faults: (string | null)[] = [];
  const loader = new SeriesLoader(server.fetch, everything, 100, (message) => faults.push(message));
  let known: number[] = [];
  loader.subscribe("run", "loss", (series) => (known = series.lines[0]?.x ?? []));
  await vi.waitFor(() => expect(faults).toEqual(["down"]));
  server.fails = false;
  await vi.waitFor(() => expect(known).toEqual([0, 1, 2]), { timeout: 4000 });
  expect(server.asked.every((query) => query.after === null)).toBe(true);
  expect(faults.at(-1)).toBeNull();
});
