// One epoch: its range of the source, and what its manifest names, task by task.

import { operators } from "./checkpoints.js";
import { h } from "./dom.js";
import { bytes, count, duration, plural, time, UNKNOWN } from "./format.js";
import { badge, facts, link, table } from "./parts.js";
import { number } from "./pipeline.js";
import { steps } from "./steps.js";

export function epochView({ pipeline, epoch }) {
  const name = pipeline.name;
  return [
    h("nav", { key: "path", "aria-label": "Path" },
      h("a", { href: link.all() }, "All pipelines"), " / ", h("a", { href: link.pipeline(name) }, name)),
    h("div", { key: "title", class: "title" }, h("h1", { tabindex: "-1" }, `Epoch ${epoch.epoch}`), badge(epoch.state)),
    facts([
      ["Rows", count(epoch.rows)],
      ["Bytes", bytes(epoch.bytes)],
      epoch.stored_bytes ? ["State", bytes(epoch.state_bytes)] : null,
      epoch.stored_bytes ? ["Stored", bytes(epoch.stored_bytes)] : null,
      ["Duration", duration(epoch.duration_s)],
      ["Generation", count(epoch.generation)],
      ["Opened", time(epoch.opened_at)],
      ["Completed", time(epoch.completed_at)],
    ].filter(Boolean), "facts tiles"),
    epoch.kind === "rows" ? null : h("p", null, epoch.why ? `${epoch.kind}: ${epoch.why}` : epoch.kind),
    epoch.error ? h("div", { class: "problem bad", role: "group", "aria-label": "Error" }, h("p", { class: "said" }, epoch.error)) : null,
    h("section", { key: "steps", "aria-labelledby": "title-steps" }, h("h2", { id: "title-steps" }, "Where its time went"), steps([epoch])),
    epoch.operators.length ? h("section", { key: "operators", "aria-labelledby": "title-operators" },
      h("h2", { id: "title-operators" }, "Acknowledgements of its operators"), operators(epoch.operators)) : null,
    h("section", { key: "range", "aria-labelledby": "title-range" }, h("h2", { id: "title-range" }, "Range"), range(epoch.range)),
    h("section", { key: "sinks", "aria-labelledby": "title-acks" }, h("h2", { id: "title-acks" }, "Sinks"),
      table("Acknowledgements of the sinks", [["Sink"], ["State"], ["Rows", true], ["Acknowledged"]], epoch.sinks.map((sink) => ({
        key: sink.name,
        cells: [h("span", { class: "name" }, sink.name), badge(sink.state), count(sink.rows), time(sink.acknowledged_at)],
      })))),
    h("section", { key: "manifest", "aria-labelledby": "title-manifest" },
      h("h2", { id: "title-manifest" }, "Manifest"), manifest(epoch)),
  ].filter(Boolean);
}

function range({ start, end }) {
  const names = Object.keys(end ?? {});
  if (!names.length) return h("p", { class: "quiet" }, "The range is empty.");
  return table("From (included) to (excluded)", [["Partition"], ["From", true], ["To", true], ["Records", true]], names.map((partition) => {
    const [from, to] = [start?.[partition], end[partition]];
    const size = typeof from === "number" && typeof to === "number" ? count(to - from) : UNKNOWN;
    return { key: partition, cells: [partition, number(from), number(to), size] };
  }), false);
}

/** Each task that wrote acknowledges with a committable, which the decision then names. */
function manifest({ manifest: tasks, state }) {
  if (!tasks?.length) {
    const says = state === "open" ? "Its tasks have not acknowledged yet." : "No task wrote a row.";
    return h("p", { class: "quiet" }, says);
  }
  return [
    h("p", { class: "quiet" }, `${plural(tasks.length, "task")} acknowledged: the decision names what each has prepared.`),
    table("Each task's acknowledgement", [["Sink"], ["Prepared work"], ["Kind"], ["Rows", true], ["Bytes", true]], tasks.map((task) => ({
      key: `${task.sink} ${task.handle}`,
      cells: [h("span", { class: "name" }, task.sink), h("code", null, task.handle), task.kind, count(task.rows), bytes(task.bytes)],
    }))),
  ];
}
