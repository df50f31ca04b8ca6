import { expect, test } from "vitest";
import { fitName, nameParts } from "./name-parts";

const numChars = (text: string): number => text.length;
const fit = (name: string, names: string[], width: number): string => fitName(nameParts(name, names), width, numChars);
const shown = (name: string, names: string[]): string =>
  nameParts(name, names)
    .map(({ text, isCommon }) => (isCommon ? `(${text})` : text))
    .join("")
    .replaceAll(")(", "|");
/** The name without everything that is common. */
const shortest = (name: string, names: string[]): string =>
  nameParts(name, names)
    .map(({ text, isCommon }) => (isCommon ? "…" : text))
    .join("")
    .replaceAll("……", "…");

test("a name is cut where it agrees with the others", () => {
  const cases: [names: string[], expected: string][] = [
    [["sweep-resnet50-imagenet-lr0.1", "sweep-resnet50-imagenet-lr0.01"], "(sweep-resnet50-imagenet-|lr)0.1"],
    [["a1-resnet50-imagenet-final", "a1-resnet101-imagenet-final"], "(a1-resnet)50(-imagenet-|final)"],
    [["a1-resnet-imagenet-final", "a1-vgg16-imagenet-final"], "a1-resnet(-imagenet-|final)"],
    [["run_lr=1_width=64_imagenet_s=0", "run_lr=2_width=64_imagenet_s=1"], "(run_|lr=)1(_width=64_imagenet_|s=)0"],
    [["projects/vision/baseline-2024", "projects/text/baseline"], "(projects/)vision/baseline-2024"],
    [["width 64 · lr 0.01", "width 128 · lr 0.01"], "(width )64( · lr 0.01)"],
    // Another script's runs do not matter; without a neighbour the end stays.
    [["sweep-resnet50-imagenet-lr0.1", "sweep-resnet50-imagenet-lr0.2", "zzz"], "(sweep-resnet50-imagenet-|lr)0.1"],
    [["a-long-name-without-neighbours", "zzz"], "(a-long-name-|without-)neighbours"],
    [["short-1", "short-2"], "short-1"],
  ];
  for (const [names, expected] of cases) expect(shown(names[0] ?? "", names)).toBe(expected);
});

test("a sweep keeps its numbers, and short words between them", () => {
  const names = [64, 128, 256, 512].flatMap((width) =>
    ["0.01", "0.003", "1e-05"].flatMap((lr) =>
      [0, 1, 2].map((seed) => `sweep-transformer-long-name-width${width}-lr${lr}-seed${seed}`),
    ),
  );
  expect(shortest(names[0] ?? "", names)).toBe("…64-lr0.01…0");
  // One run with another kind of name changes nothing for the others.
  expect(shortest(names[0] ?? "", [...names, "sweep-transformer-long-name-baseline"])).toBe("…64-lr0.01…0");
});

test("long common texts are cut before short ones, and both before what differs", () => {
  const names = ["64", "512"].flatMap((width) =>
    ["0.01", "0.001"].map((lr) => `a-long-name-width${width}-lr${lr}-seed0`),
  );
  const [name = ""] = names;
  expect([99, 29, 24, 18, 12, 9, 3, 1, 0].map((width) => fit(name, names, width))).toEqual([
    "a-long-name-width64-lr0.01-seed0",
    "a-long-n…width64-lr0.01-seed0",
    "a-l…width64-lr0.01-seed0",
    "…width64-lr0.01-s…",
    "a…64-lr0.01…",
    "…64-….01…",
    "…1…",
    "…",
    "…",
  ]);
});

test("the parts are the whole name", () => {
  for (const name of [
    "a  b--c..d//e=f,,g:h and more words",
    "日本語の長い名前-実験その一-学習率",
    "----------------------",
    "emoji 🙂🙂🙂🙂🙂🙂 and more of them",
    "",
  ])
    expect(
      nameParts(name, [name, `${name}x`])
        .map(({ text }) => text)
        .join(""),
    ).toBe(name);
});

test("names that are cut as much as possible are still different", () => {
  let state = 1;
  const below = (limit: number): number => (state = (state * 48271) % 2147483647) % limit;
  const pick = <Item>(items: readonly Item[]): Item => items[below(items.length)] as Item;
  const words = ["sweep", "resnet", "baseline", "width", "lr", "seed", "a", "final", "transformer", "β", "学習"];
  const separators = ["-", "_", "/", ".", "=", " · ", ""];
  const values = ["0", "1", "64", "512", "0.1", "0.01", "1e-4", "3e-05", "v2", "true", ""];
  for (let round = 0; round < 400; round++) {
    // Some scripts, each with its own kind of names, and a few names without any order.
    const makers = Array.from({ length: 1 + below(3) }, () => {
      const pieces = Array.from({ length: 1 + below(6) }, () => [pick(words), pick(separators), pick(separators)]);
      const varied = pieces.map(() => below(3) > 0);
      return (): string =>
        pieces.map(([word, before, after], at) => `${word}${before}${varied[at] ? pick(values) : ""}${after}`).join("");
    });
    const odd = (): string => Array.from({ length: 1 + below(8) }, () => pick(words) + pick(separators)).join("");
    const names = [...new Set(Array.from({ length: 2 + below(40) }, () => (below(10) ? pick(makers)() : odd())))];
    expect(
      names.map((name) =>
        nameParts(name, names)
          .map(({ text }) => text)
          .join(""),
      ),
    ).toEqual(names);
    const least = Math.max(...names.map((name) => shortest(name, names).length));
    for (const width of [least, least + 1, least + 4, least + 11]) {
      const texts = names.map((name) => fit(name, names, width));
      expect(Math.max(...texts.map(numChars))).toBeLessThanOrEqual(width);
      expect(new Set(texts).size, `${width}: ${names.join("\n")}`).toBe(names.length);
    }
  }
});
