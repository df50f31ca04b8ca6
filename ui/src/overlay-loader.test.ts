import { expect, test, vi } from "vitest";
import type { SeriesView } from "./api";
import { OverlayLoader, type OverlayQuery, type SeriesByRun } from "./overlay-loader";

const runs = Array.from({ length: 5 }, (_, index) => `run${index}`);
const query: OverlayQuery = { runs, x: "step", low: null, high: null, points: 100 };
const series = (name: string): SeriesView => ({ name, last: 1, lines: [], marks: [], reason: null, num_unplaced: 0 });
const settle = (): Promise<void> => new Promise((resolve) => setTimeout(resolve));

test("runs are loaded in batches, and again when they have changed", async () => {
  const asked: string[][] = [];
  const loader = new OverlayLoader(
    async (names, name) => {
      asked.push(names);
      return names.map((run) => ({ run, series: series(name), isComplete: true }));
    },
    query,
    () => {},
    2,
  );
  const seen: number[] = [];
  const stop = loader.subscribe("loss", (byRun) => seen.push(Object.keys(byRun).length));
  await settle();
  expect(asked.flat().toSorted()).toEqual(runs);
  expect(Math.max(...asked.map((names) => names.length))).toBe(2);
  expect(seen.at(-1)).toBe(5);
  asked.length = 0;
  loader.refresh({ run3: "2" });
  await settle();
  expect(asked).toEqual([["run3"]]);
  stop();
  loader.refresh({ run3: "3" });
  await settle();
  expect(asked).toHaveLength(1);
  loader.close();
});

test("the charts at the top of the page are loaded first", async () => {
  const asked: string[] = [];
  const loader = new OverlayLoader(
    async (names, name) => {
      asked.push(name);
      return names.map((run) => ({ run, series: series(name), isComplete: true }));
    },
    query,
    () => {},
  );
  loader.setOrder(["loss", "lr"]);
  for (const name of ["other", "lr", "loss"]) loader.subscribe(name, () => {});
  await settle();
  expect(asked).toEqual(["loss", "lr", "other"]);
  loader.close();
});

test("another axis drops what was asked before", async () => {
  const answers: (() => void)[] = [];
  let last: SeriesByRun = {};
  const loader = new OverlayLoader(
    (names, name, { x }, signal) =>
      new Promise((resolve, reject) => {
        signal.addEventListener("abort", () => reject(new DOMException("", "AbortError")));
        answers.push(() => resolve(names.map((run) => ({ run, series: series(`${name} ${x}`), isComplete: true }))));
      }),
    query,
    (message) => expect(message).toBeNull(),
  );
  loader.subscribe("loss", (byRun) => (last = byRun));
  await settle();
  loader.setQuery({ ...query, x: "time" });
  await settle();
  for (const answer of answers) answer();
  await settle();
  expect(last["run0"]?.name).toBe("loss time");
  loader.close();
});

test("a failed request and an incomplete answer are repeated after a pause", async () => {
  vi.useFakeTimers();
  const messages: (string | null)[] = [];
  let numCalls = 0;
  const loader = new OverlayLoader(
    async (names, name) => {
      if (++numCalls === 1) throw new Error("no server");
      return names.map((run) => ({ run, series: series(name), isComplete: numCalls > 2 }));
    },
    { ...query, runs: ["a"] },
    (message) => messages.push(message),
  );
  loader.subscribe("loss", () => {});
  await vi.advanceTimersByTimeAsync(10);
  expect([numCalls, messages]).toEqual([1, ["no server"]]);
  await vi.advanceTimersByTimeAsync(10_000);
  expect([numCalls, messages.at(-1)]).toEqual([3, null]);
  loader.close();
  vi.useRealTimers();
});

test("other runs leave alone what is loaded, and few runs are loaded more finely", async () => {
  const asked: [string[], number][] = [];
  let seen: string[] = [];
  const loader = new OverlayLoader(
    async (names, name, { points }) => {
      asked.push([names, points]);
      return names.map((run) => ({ run, series: series(name), isComplete: true }));
    },
    query,
    () => {},
  );
  loader.subscribe("loss", (byRun) => (seen = Object.keys(byRun)));
  const choose = async (runs: string[], points: number): Promise<void> => {
    asked.length = 0;
    loader.setQuery({ ...query, runs, points });
    await settle();
  };
  await settle();
  await choose(["run0", "run2"], 150);
  expect([asked, seen]).toEqual([[], ["run0", "run2"]]);
  await choose(["run0", "run2", "new"], 120);
  expect([asked, seen]).toEqual([[[["new"], 120]], ["run0", "run2", "new"]]);
  await choose(["run2"], 1000);
  expect(asked).toEqual([[["run2"], 1000]]);
  await choose(runs, 100);
  expect([asked, seen]).toEqual([[], runs]);
  loader.close();
});

test("a metric on an axis of its own has its own range", async () => {
  const asked: string[] = [];
  const loader = new OverlayLoader(
    async (names, name, { x, low, high }) => {
      asked.push(`${name} ${x} ${low} ${high}`);
      return names.map((run) => ({ run, series: series(name), isComplete: true }));
    },
    { ...query, low: 5, high: 9 },
    () => {},
  );
  const own = loader.on("metric:frames");
  expect(loader.on("metric:frames")).toBe(own);
  const seen: SeriesByRun[] = [];
  loader.subscribe("loss", () => {});
  own.subscribe("loss", (byRun) => seen.push(byRun));
  await settle();
  expect(asked).toEqual(["loss step 5 9", "loss metric:frames null null"]);
  asked.length = 0;
  loader.setRange("metric:frames", 1, 2);
  await settle();
  expect(asked).toContain("loss metric:frames 1 2");
  // Another axis for the others leaves its lines where they are.
  seen.length = 0;
  loader.setQuery({ ...query, x: "time" });
  expect(Object.keys(seen[0] ?? {})).toHaveLength(5);
  loader.close();
});
