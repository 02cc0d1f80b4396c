// The last lines that were logged of a pipeline, and what its file says.

import { h } from "./dom.js";
import { time } from "./format.js";

const TONES = { warning: "warn", error: "bad", critical: "bad" };

/** The newest first. */
export function log(lines, name) {
  if (!lines?.length) return h("p", { class: "quiet" }, "Nothing was logged since the daemon was started.");
  return scrolled(`Log of ${name}`, h("ol", null, lines.toReversed().map(({ at, level, message }) =>
    h("li", { class: TONES[level] ?? false }, time(at), " ", h("b", null, level), " ", message))));
}

export function definition(lines, name) {
  if (!lines) return null;
  if (!lines.length) return h("p", { class: "quiet" }, "It is defined in Python.");
  return scrolled(`Definition of ${name}`, h("code", null, lines.join("\n")));
}

const scrolled = (label, content) => h("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": label }, content);
