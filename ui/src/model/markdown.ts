/**
 * A small part of Markdown as a tree: headings, paragraphs, lists, quotes, code, bold, italics and links.
 *
 * The page builds elements from the tree and never parses HTML, so a note cannot contain anything else.
 */

export type Inline =
  | { kind: "text" | "code"; text: string }
  | { kind: "bold" | "italic"; parts: Inline[] }
  | { kind: "link"; href: string; parts: Inline[] };

export type Block =
  | { kind: "heading" | "paragraph" | "quote"; parts: Inline[] }
  | { kind: "code"; text: string }
  | { kind: "list"; isOrdered: boolean; items: Inline[][] };

const item = /^\s*(?:[-*+]|(\d+)[.)])\s+(.*)$/;

export function parseMarkdown(text: string): Block[] {
  const blocks: Block[] = [];
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  let paragraph: string[] = [];
  const endParagraph = (): void => {
    if (paragraph.length) blocks.push({ kind: "paragraph", parts: parseInline(paragraph.join("\n")) });
    paragraph = [];
  };
  for (let index = 0; index < lines.length; index++) {
    const line = lines[index] ?? "";
    const heading = /^#{1,6}\s+(.*)$/.exec(line);
    const quote = /^>\s?(.*)$/.exec(line);
    const listed = item.exec(line);
    if (line.startsWith("```")) {
      endParagraph();
      const end = lines.findIndex((other, at) => at > index && other.startsWith("```"));
      const last = end < 0 ? lines.length : end;
      blocks.push({ kind: "code", text: lines.slice(index + 1, last).join("\n") });
      index = last;
    } else if (heading) {
      endParagraph();
      blocks.push({ kind: "heading", parts: parseInline(heading[1] ?? "") });
    } else if (quote) {
      endParagraph();
      blocks.push({ kind: "quote", parts: parseInline(quote[1] ?? "") });
    } else if (listed) {
      endParagraph();
      const isOrdered = listed[1] !== undefined;
      const last = blocks.at(-1);
      const parts = parseInline(listed[2] ?? "");
      const follows = index > 0 && item.test(lines[index - 1] ?? "");
      if (follows && last?.kind === "list" && last.isOrdered === isOrdered) last.items.push(parts);
      else blocks.push({ kind: "list", isOrdered, items: [parts] });
    } else if (line.trim() === "") endParagraph();
    else paragraph.push(line);
  }
  endParagraph();
  return blocks;
}

// The lengths are bounded, so that a long text of opening marks is parsed quickly.
const inline =
  /`([^`\n]{1,500})`|\*\*([^\n]{1,500}?)\*\*|\*([^*\s](?:[^*\n]{0,500}[^*\s])?)\*|\[([^\]\n]{1,200})\]\(([^()\s]{1,2000})\)|(https?:\/\/[^\s<>()"'`]{1,2000}[^\s<>()"'`.,;:!?])/;
const maxDepth = 5;

function parseInline(text: string, depth = 0): Inline[] {
  const found: Inline[] = [];
  let rest = text;
  while (rest) {
    const match = depth < maxDepth ? inline.exec(rest) : null;
    if (!match) {
      found.push({ kind: "text", text: rest });
      break;
    }
    if (match.index > 0) found.push({ kind: "text", text: rest.slice(0, match.index) });
    const [whole, code, bold, italic, label, target, address] = match;
    if (code !== undefined) found.push({ kind: "code", text: code });
    else if (bold !== undefined) found.push({ kind: "bold", parts: parseInline(bold, depth + 1) });
    else if (italic !== undefined) found.push({ kind: "italic", parts: parseInline(italic, depth + 1) });
    else if (address !== undefined)
      found.push({ kind: "link", href: address, parts: [{ kind: "text", text: address }] });
    else if (/^https?:\/\//i.test(target ?? "")) {
      found.push({ kind: "link", href: target ?? "", parts: parseInline(label ?? "", maxDepth) });
    } else found.push({ kind: "text", text: whole });
    rest = rest.slice(match.index + whole.length);
  }
  return found;
}
