import type { Json, RunDetail } from "../api";

/** What a run captured of its code, for people. */
export interface CapturedCode {
  facts: Record<string, Json>;
  patch: { numFiles: number; size: number; isMasked: boolean } | null;
  /** What is missing, and why. */
  problems: string[];
}

type Fields = Record<string, Json>;

const maxProblems = 4;

export function captured(detail: Pick<RunDetail, "code" | "git">): CapturedCode {
  const code: Fields = detail.code;
  const git: Fields = { ...detail.git, ...section(code, "git") };
  const diff = section(code, "diff");
  const files = section(code, "files");
  const packages = section(code, "packages");
  const facts: Fields = {
    commit: git["commit"] ?? null,
    branch: git["branch"] ?? null,
    remote: git["remote"] ?? null,
    "uncommitted changes": git["dirty"] === true ? "yes" : git["dirty"] === false ? "no" : null,
    "stored files": count(files["num_files"]),
    "untracked files": count(files["num_untracked"]),
    packages: count(packages["num_packages"]),
    seed: section(code, "determinism")["torch_seed"] ?? null,
  };
  const numFiles = count(diff["num_files"]);
  const isStored = typeof diff["file"] === "string" && numFiles !== null;
  const size = diff["size_bytes"];
  return {
    facts,
    patch: isStored
      ? { numFiles, size: typeof size === "number" ? size : 0, isMasked: Array.isArray(diff["masked"]) }
      : null,
    problems: [...problems(code), ...leftOut(diff), ...leftOut(files)].slice(0, maxProblems),
  };
}

function section(code: Fields, name: string): Fields {
  const found = code[name];
  return typeof found === "object" && found !== null && !Array.isArray(found) ? found : {};
}

/** Returns a count above zero, or null. */
function count(value: Json | undefined): number | null {
  return typeof value === "number" && value > 0 ? value : null;
}

function problems(code: Fields): string[] {
  if (typeof code["missing"] === "string") return [`Nothing was captured: ${code["missing"]}.`];
  return ["diff", "files", "packages"].flatMap((part) => {
    const reason = section(code, part)["missing"];
    return typeof reason === "string" ? [`No ${part}: ${reason}.`] : [];
  });
}

function leftOut(part: Fields): string[] {
  const listed = Array.isArray(part["left_out"]) ? part["left_out"] : [];
  return listed.flatMap((entry) =>
    typeof entry === "object" && entry !== null && !Array.isArray(entry) && entry["reason"] !== "not a source file"
      ? [`Not stored: ${String(entry["path"])}: ${String(entry["reason"])}.`]
      : [],
  );
}
