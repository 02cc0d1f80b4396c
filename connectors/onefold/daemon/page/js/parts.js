// Parts of which the views are made.

import { h } from "./dom.js";
import { ago, UNKNOWN, until } from "./format.js";

/** What a state looks like: its tone, and a shape, so that no meaning is in the colour alone. */
const LOOKS = {
  starting: ["busy", "M4 8h.01M8 8h.01M12 8h.01"],
  running: ["good", "M5 3l8 5-8 5z"],
  paused: ["calm", "M5 3v10M11 3v10"],
  waiting: ["warn", "M8 2a6 6 0 1 0 .01 0M8 5v3l2 2"],
  stopping: ["busy", "M4 8h.01M8 8h.01M12 8h.01"],
  stopped: ["calm", "M4 4h8v8H4z"],
  finished: ["good", "M3 8.5L6.5 12 13 4.5"],
  failed: ["bad", "M4 4l8 8M12 4l-8 8"],
  fenced: ["bad", "M2 13V5l3-2 3 2 3-2 3 2v8M2 9h12"],
  open: ["busy", "M4 8h.01M8 8h.01M12 8h.01"],
  decided: ["warn", "M8 2a6 6 0 1 0 .01 0M8 5v3l2 2"],
  complete: ["good", "M3 8.5L6.5 12 13 4.5"],
  given_up: ["calm", "M3 8h10"],
  damaged: ["bad", "M4 4l8 8M12 4l-8 8"],
  acknowledged: ["good", "M3 8.5L6.5 12 13 4.5"],
  pending: ["busy", "M4 8h.01M8 8h.01M12 8h.01"],
};
const LETTERS = { "sent again": "complete", "not known whether sent": "decided" };
const WORDS = { given_up: "given up", open: "in progress" };

export function badge(state) {
  const [tone, shape] = LOOKS[LETTERS[state] ?? state] ?? ["calm", "M3 8h10"];
  return h("span", { class: `badge ${tone}` }, icon(shape), WORDS[state] ?? state);
}

const icon = (shape) => h("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, h("path", { d: shape }));

/** Only the shape, where there is no room; the word is for screen readers, and shown to a pointer that rests on it. */
function mark(state) {
  const [tone, shape] = LOOKS[state] ?? ["calm", "M3 8h10"];
  return h("span", { class: `mark ${tone}`, title: state }, icon(shape), h("span", { class: "unseen" }, state));
}

const IN_DOUBT_S = 60; // an epoch that is well holds its transactions for less

/** Whether something has been prepared for so long that somebody should look. */
export const isInDoubtLong = ({ oldest_prepared_s: oldest_s }) => oldest_s > IN_DOUBT_S;

export const link = {
  all: () => "#/",
  pipeline: (name) => `#/pipelines/${encodeURIComponent(name)}`,
  epoch: (name, epoch) => `${link.pipeline(name)}/epochs/${epoch}`,
  letters: (name) => `${link.pipeline(name)}/dead-letters`,
};

/** Labels with values; rows are [label, value, whether it needs a look]. */
export const facts = (rows, kind = "facts") =>
  h("dl", { class: kind }, rows.map(([label, value, needsLook]) =>
    h("div", { class: needsLook ? "warn" : false },
      h("dt", null, needsLook ? [icon("M8 2.5L14.5 13.5h-13zM8 7v3"), h("span", { class: "unseen" }, "Attention: ")] : null, label),
      h("dd", null, value))));

/** A table, whose caption is seen unless `isTitled` by a heading; on a phone each row is a card, for which the roles say again what the cards' layout hides.
 *  Columns are [name, isNumber]. */
export function table(caption, columns, rows, isTitled = true) {
  const head = columns.map(([name, isNumber]) => h("th", { scope: "col", role: "columnheader", class: isNumber ? "number" : false }, name));
  const cell = (value, at) =>
    h("td", { role: "cell", class: columns[at][1] ? "number" : false, "data-label": columns[at][0] }, value);
  return h("table", { role: "table" },
    h("caption", { class: isTitled ? "unseen" : false }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
    h("tbody", { role: "rowgroup" }, rows.map(({ key, cells }) => h("tr", { role: "row", key }, cells.map(cell)))));
}

/** The pipeline's error, and that of its checkpoint store. */
export function problem(pipeline) {
  const { error, store_error: ofStore } = pipeline;
  if (!error) return ofStore ? h("div", { class: "problem warn", role: "group", "aria-label": "Checkpoint store" },
    h("p", null, h("code", null, ofStore.code)), h("p", { class: "said" }, ofStore.message)) : null;
  const isOver = pipeline.state === "failed" || pipeline.state === "fenced";
  const next = pipeline.next_start_at ? h("p", null, `It is started again ${until(pipeline.next_start_at)}.`) : null;
  return h("div", { key: "problem", class: `problem ${isOver ? "bad" : "warn"}`, role: "group", "aria-label": "Error" },
    h("p", null, h("code", null, error.code), " ", error.at ? h("span", { class: "quiet" }, ago(error.at)) : null),
    h("p", { class: "said" }, error.message), next);
}

/** Each sink, and whether it has acknowledged its part. */
export function acknowledgements(sinks) {
  if (!sinks?.length) return UNKNOWN;
  return h("ul", { class: "acks" }, sinks.map((sink) =>
    h("li", { key: sink.name }, sink.name, " ", mark(sink.state))));
}

