import { expect, test } from "vitest";
import { captured } from "./code";

const data = { path: "data.bin", reason: "not a source file" };

test("shows the commit, the patch and what is missing", () => {
  const found = captured({
    git: { commit: "abc", branch: "old" },
    code: {
      git: { branch: "trunk", dirty: true },
      diff: { num_files: 2, size_bytes: 300, file: "x.patch", masked: ["a.py"] },
      files: { num_files: 3, num_untracked: 0, left_out: [{ path: "a.py", reason: "too large" }, data] },
      packages: { missing: "took too long" },
    },
  });
  expect(found.facts).toMatchObject({ commit: "abc", branch: "trunk", "stored files": 3, "untracked files": null });
  expect(found.patch).toEqual({ numFiles: 2, size: 300, isMasked: true });
  expect(found.problems).toEqual(["No packages: took too long.", "Not stored: a.py: too large."]);
});

test("odd records show nothing", () => {
  expect(captured({ git: {}, code: { diff: [1], files: "x", packages: null } }).problems).toEqual([]);
  expect(captured({ git: {}, code: { diff: { file: 3, num_files: 1 } } }).patch).toBeNull();
});
