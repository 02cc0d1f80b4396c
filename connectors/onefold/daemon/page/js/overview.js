// All pipelines of the daemon, at a glance.

import { runs } from "./checkpoints.js";
import { h } from "./dom.js";
import { ago, behind, count, isKnown, plural } from "./format.js";
import { badge, facts, isInDoubtLong, link, problem } from "./parts.js";

export function overview({ pipelines }) {
  if (!pipelines.length) return [h("h1", { key: "h1", tabindex: "-1" }, "Pipelines"), h("p", null, "This daemon runs no pipeline.")];
  const states = new Map();
  for (const { state } of pipelines) states.set(state, (states.get(state) ?? 0) + 1);
  const sum = [...states].map(([state, number]) => `${number} ${state}`).join(", ");
  return [
    h("h1", { key: "h1", tabindex: "-1" }, "Pipelines"),
    h("p", { class: "quiet" }, `${plural(pipelines.length, "pipeline")}: ${sum}`),
    h("ul", { class: "cards" }, pipelines.map(card)),
  ];
}

function card(pipeline) {
  const { name } = pipeline;
  return h("li", { key: name, class: "card" },
    h("h2", null, h("a", { href: link.pipeline(name) }, name), badge(pipeline.state)),
    problem(pipeline),
    runs(pipeline.running, true),
    h("ul", { class: "promises", "aria-label": "What is guaranteed" }, pipeline.sinks.map((sink) =>
      h("li", { key: sink.name }, h("span", { class: "name" }, sink.name), " ", promise(sink)))),
    facts([
      ["Epoch", count(pipeline.epoch)],
      ["Behind", behind(pipeline.behind)],
      ["In doubt", count(pipeline.in_doubt), isInDoubtLong(pipeline)],
      isKnown(pipeline.dead_letters) ? ["Dead letters", count(pipeline.dead_letters), pipeline.dead_letters > 0] : null,
      ["Last progress", ago(pipeline.progress_at)],
    ].filter(Boolean)));
}

/** What readers of a sink get, in a few words. */
export function promise({ promise: what, atomic }) {
  if (!isKnown(what)) return "not known yet";
  return `${what}, readers ${atomic ? "see whole epochs" : "may see a part of an epoch"}`;
}
