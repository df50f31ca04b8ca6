import { expect, test } from "vitest";
import { nameParts } from "./name-parts";

const shown = (name: string, names: string[]): string =>
  nameParts(name, names)
    .map(({ text, isCommon }) => (isCommon ? `(${text})` : text))
    .join("");

test("a name is cut where its neighbours have the same words", () => {
  const cases: [names: string[], expected: string][] = [
    [["sweep-resnet50-imagenet-lr0.1", "sweep-resnet50-imagenet-lr0.01"], "(sweep-resnet50-imagenet-)lr0.1"],
    [["a1-resnet50-imagenet-final", "a1-resnet101-imagenet-final"], "(a1-)resnet50-(imagenet-final)"],
    [["run_lr=1_width=64_imagenet_s=0", "run_lr=2_width=64_imagenet_s=1"], "(run_lr=)1_(width=64_imagenet_s=)0"],
    [["projects/vision/baseline-2024", "projects/text/baseline"], "(projects/)vision/baseline-2024"],
    // Another script's runs do not matter; without a neighbour the end stays.
    [["sweep-resnet50-imagenet-lr0.1", "sweep-resnet50-imagenet-lr0.2", "zzz"], "(sweep-resnet50-imagenet-)lr0.1"],
    [["a-long-name-without-neighbours", "zzz"], "(a-long-name-without-n)eighbours"],
    [["short-1", "short-2"], "short-1"],
  ];
  for (const [names, expected] of cases) expect(shown(names[0] ?? "", names)).toBe(expected);
});

test("the parts are the whole name", () => {
  for (const name of [
    "a  b--c..d//e=f,,g:h and more words",
    "日本語の長い名前-実験その一-学習率",
    "----------------------",
  ])
    expect(
      nameParts(name, [name, `${name}x`])
        .map(({ text }) => text)
        .join(""),
    ).toBe(name);
});
