import { expect, test } from "vitest";
import { parseMarkdown } from "./markdown";

test("the usual marks become a tree", () => {
  const blocks = parseMarkdown(
    "# Why\nLoss **spike** is *data*, see `shard 17`\n\n- a\n- b\n1. c\n\n> said\n```\nx <b>\n```",
  );
  expect(blocks.map((block) => block.kind)).toEqual(["heading", "paragraph", "list", "list", "quote", "code"]);
  expect(blocks[1]).toMatchObject({
    parts: [{ text: "Loss " }, { kind: "bold" }, {}, { kind: "italic" }, {}, { kind: "code" }],
  });
  expect(blocks[2]).toMatchObject({ isOrdered: false, items: [[{ text: "a" }], [{ text: "b" }]] });
  expect(blocks.at(-1)).toEqual({ kind: "code", text: "x <b>" });
});

test("only web addresses become links, and HTML stays text", () => {
  const links = parseMarkdown("[a](https://x.org/b) [b](javascript:alert(1)) [c](data:text/html,x) http://y.org.");
  const kinds = JSON.stringify(links);
  expect(kinds.match(/"href":"[^"]*"/g)).toEqual(['"href":"https://x.org/b"', '"href":"http://y.org"']);
  expect(parseMarkdown("<img src=x onerror=alert(1)>")).toEqual([
    { kind: "paragraph", parts: [{ kind: "text", text: "<img src=x onerror=alert(1)>" }] },
  ]);
});

test("long and odd texts are parsed", () => {
  for (const text of ["*".repeat(50_000), "[".repeat(50_000), `a${"`".repeat(50_001)}`, "**a".repeat(20_000)]) {
    expect(JSON.stringify(parseMarkdown(text)).length).toBeGreaterThan(40_000);
  }
  expect(parseMarkdown("```\nopen")).toEqual([{ kind: "code", text: "open" }]);
});
