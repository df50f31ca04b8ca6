import { expect, test } from "vitest";
import type { Whoami } from "../api";
import { allows, describeAccess, isTeam, missingScope } from "./access";

const key: Whoami = { name: "ada", id: "k1", scopes: ["read"], project: null, expires: null, server: "1" };
const nobody: Whoami = { ...key, name: "", id: "", scopes: ["admin", "control", "read", "write"] };

test("a private dashboard allows everything and has no names", () => {
  expect(isTeam(nobody)).toBe(false);
  expect(allows(nobody, "admin")).toBe(true);
  expect(missingScope(nobody, "control")).toBeUndefined();
});

test("the server decides until it has said who is there", () => {
  expect(isTeam(null)).toBe(false);
  expect(allows(null, "control")).toBe(true);
});

test("a missing scope is named", () => {
  expect(isTeam(key)).toBe(true);
  expect(missingScope(key, "read")).toBeUndefined();
  expect(missingScope(key, "control")).toBe("The key ada lacks the scope control.");
  expect(missingScope({ ...key, id: "" }, "admin")).toBe("The user ada lacks the scope admin.");
});

test("admin includes all scopes", () => {
  const admin = { ...key, scopes: ["admin"] };
  expect(["read", "write", "control", "admin"].every((scope) => allows(admin, scope as "read"))).toBe(true);
});

test("access is described by its scopes and its project", () => {
  expect(describeAccess({ ...key, scopes: ["control", "read"] })).toBe("control, read");
  expect(describeAccess({ ...key, project: "nlp" })).toBe("read · project nlp");
});
