import { expect, test } from "vitest";
import type { FieldView } from "../api";
import {
  complete,
  continuations,
  excerpt,
  projectsOf,
  quoteField,
  quoteValue,
  readProject,
  readStates,
  selectRuns,
  type Vocabulary,
  writeProject,
  writeStates,
} from "./query-text";

const field = (name: string, kind: FieldView["kind"] = "number"): FieldView => ({
  field: name,
  kind,
  num_runs: 2,
  differs: true,
  varies: true,
  is_label: false,
  values: name === "host" ? ["node1", "node2"] : [],
});
const vocabulary: Vocabulary = {
  fields: [
    field("name", "text"),
    field("state", "text"),
    field("tags", "list"),
    field("started", "time"),
    field("host", "text"),
    field("config.learning_rate"),
    field("config.two words"),
    field("val/loss.last"),
  ],
  aggregates: ["last", "min", "max", "at_min"],
  values: { tags: ["paper", "long run"] },
};
const suggest = (text: string, cursor = text.length): string[] =>
  complete(text, cursor, vocabulary).suggestions.map((each) => each.text);

test("a text that ends in part of a field can be continued", () => {
  expect(continuations("config.lear", vocabulary)).toEqual(["config.learning_rate"]);
  expect(continuations("state:failed -started", vocabulary)).toContain("started>");
  for (const text of ["", "x", "baseline", "state:fail", "host in (no", '"config.lear', "config.lear "])
    expect(continuations(text, vocabulary)).toEqual([]);
});

test("names, operators, aggregates and values are suggested", () => {
  expect(suggest("lear")).toEqual(["config.learning_rate"]);
  expect(suggest("state:failed -sta")).toEqual(["state", "started"]);
  expect(suggest("two")).toEqual(["`config.two words`"]);
  expect(suggest("val/loss")).toEqual(["val/loss.last", "val/loss.min", "val/loss.max"]);
  expect(suggest("val/loss.at")).toEqual(["val/loss.at_min"]);
  expect(suggest("config.learning_rate")).toContain("config.learning_rate>=");
  expect(suggest("state")).toEqual(["state:", "state=", "state!=", "state~"]);
  expect(suggest("state:f")).toEqual(["finished", "failed"]);
  expect(suggest("tag:")).toEqual(["paper", '"long run"']);
  expect(suggest("host:")).toEqual(["node1", "node2"]);
  expect(suggest("started>")).toContain("-7d");
  expect(suggest("state in (failed, cr")).toEqual(["crashed"]);
});

test("a suggestion replaces the word at the cursor", () => {
  const text = "state:failed lear or x";
  const found = complete(text, 17, vocabulary);
  expect([found.from, found.to]).toEqual([13, 17]);
  expect(complete("-sta", 4, vocabulary).from).toBe(1);
});

test("nothing is suggested in quotes, and unknown values are asked for", () => {
  expect(suggest('"stat')).toEqual([]);
  expect(suggest("name~sta")).toEqual([]);
  expect(suggest("")).toEqual([]);
  expect(complete("name:", 5, vocabulary).wantsValuesOf).toBe("name");
});

test("names and values are quoted where needed", () => {
  expect([quoteField("a b"), quoteField("config.x"), quoteField("or"), quoteField("a`b")]).toEqual([
    "`a b`",
    "config.x",
    "`or`",
    "`a``b`",
  ]);
  expect([quoteValue("x"), quoteValue('a "b"\\')]).toEqual(["x", '"a \\"b\\"\\\\"']);
  expect(selectRuns(["a", 'b"'])).toEqual([{ filter: 'name in ("a", "b\\"")', names: ["a", 'b"'] }]);
  expect(selectRuns(["a/b"])[0]?.filter).toBe('name in ("a/b", "b")');
  const many = Array.from({ length: 900 }, (_, index) => `run-${index}`);
  const parts = selectRuns(many);
  for (const part of parts) expect(part.filter.length).toBeLessThan(4_000);
  expect(parts.flatMap((part) => part.names)).toEqual(many);
});

test("the quick filter by state edits its own term", () => {
  expect(writeStates("", ["failed"])).toBe("state:failed");
  expect(writeStates("lora state:failed x", ["failed", "crashed"])).toBe("lora state in (failed, crashed) x");
  expect(writeStates("lora state in (failed, crashed)", [])).toBe("lora");
  expect(writeStates("a or b", ["failed"])).toBe("(a or b) state:failed");
  expect(readStates("x state in (failed, crashed)")).toEqual(["failed", "crashed"]);
  expect(readStates("-state:failed")).toEqual([]);
});

test("a problem is shown at its place", () => {
  expect(excerpt("a>=< b", 3)).toEqual({ before: "a>=", at: "<", after: " b" });
  expect(excerpt("a>", 2)).toEqual({ before: "a>", at: " ", after: "" });
});

test("the projects of runs are their first folders", () => {
  expect(projectsOf(["nlp/a", "vision/b/c", "nlp/d", "alone"])).toEqual(["nlp", "vision"]);
});

test("a project is a term of its own in an expression", () => {
  expect(writeProject("", "nlp")).toBe('name~"^nlp/"');
  expect(readProject('state:running name~"^nlp/"')).toBe("nlp");
  expect(writeProject('name~"^nlp/" state:running', "vision")).toBe('name~"^vision/" state:running');
  expect(writeProject('name~"^nlp/" state:running', "")).toBe("state:running");
  expect(writeProject("a or b", "nlp")).toBe('(a or b) name~"^nlp/"');
  expect(readProject("nlp")).toBe("");
});

test("a project with special characters is found again", () => {
  for (const project of ["v1.5+x", "a@b=c", "größe"]) {
    expect(readProject(writeProject("loss<1", project))).toBe(project);
    expect(writeProject(writeProject("loss<1", project), "")).toBe("loss<1");
  }
});
