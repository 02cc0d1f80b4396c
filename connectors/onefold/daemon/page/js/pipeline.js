// One pipeline: its state, counts, plots, sinks, positions and history.

import { checkpoints } from "./checkpoints.js";
import { h } from "./dom.js";
import { ago, behind, bytes, count, duration, isKnown, plural, time, UNKNOWN } from "./format.js";
import { promise } from "./overview.js";
import { acknowledgements, badge, facts, isInDoubtLong, link, problem, table } from "./parts.js";
import { graph } from "./graph.js";
import { definition, log } from "./log.js";
import { plot } from "./plot.js";
import { stateView } from "./state.js";
import { steps } from "./steps.js";

const ACTIONS = { pause: "Pause", resume: "Resume", restart: "Restart", stop: "Stop" };
const DOING = { pause: "Pausing…", resume: "Resuming…", restart: "Restarting…", stop: "Stopping…" };
const EPOCHS_SHORT = 12; // until more are asked for
const PLACES = { pause: "hold", resume: "hold" }; // one takes the other's place, so that the focus stays

export function pipelineView(context) {
  const { pipeline, history, lags } = context;
  const { name } = pipeline;
  return [
    h("nav", { key: "path", "aria-label": "Path" }, h("a", { href: link.all() }, "All pipelines")),
    h("div", { key: "title", class: "title" }, h("h1", { tabindex: "-1" }, name), badge(pipeline.state), buttons(context)),
    problem(pipeline),
    section("now", "Now", now(pipeline)),
    section("graph", "Graph", graph(context.graph, name)),
    context.operators?.length ? section("state", "State", stateView(context)) : null,
    section("epochs", "Checkpoints", checkpoints(pipeline)),
    section("steps", "Where an epoch's time goes", history ? steps(history.epochs) : null),
    h("div", { key: "plots", class: "plots" },
      ...lagPlots(lags),
      plot({ title: "Throughput", unit: "rows/s", points: throughput(history?.epochs ?? []), steps: true, empty: "Two complete epochs make a line." })),
    section("sinks", "Sinks and what they guarantee", sinks(pipeline)),
    section("positions", "Source", positions(pipeline)),
    section("history", "History", historyTable(context)),
    section("log", "Log", log(context.log, name)),
    section("definition", "Definition", definition(context.definition, name)),
  ].filter(Boolean);
}

const section = (key, title, ...content) =>
  h("section", { key, "aria-labelledby": `title-${key}` }, h("h2", { id: `title-${key}` }, title), ...content);

function buttons({ pipeline, doing, act, isReachable }) {
  const known = pipeline.actions.filter((action) => action in ACTIONS);
  if (!known.length) return null;
  return h("div", { class: "buttons", role: "group", "aria-label": `Control ${pipeline.name}` }, known.map((action) =>
    h("button", {
      key: PLACES[action] ?? action,
      type: "button",
      "aria-disabled": doing || !isReachable ? "true" : false,
      onclick: doing || !isReachable ? null : () => act(pipeline.name, action),
    }, doing === action ? DOING[action] : ACTIONS[action])));
}

const now = (pipeline) => facts([
  ["Epoch", count(pipeline.epoch)],
  ["Behind", behind(pipeline.behind)],
  ["In doubt", inDoubt(pipeline), isInDoubtLong(pipeline)],
  pipeline.takes_dead_letters
    ? ["Dead letters", h("a", { href: link.letters(pipeline.name) }, isKnown(pipeline.dead_letters) ? count(pipeline.dead_letters) : "browse"), pipeline.dead_letters > 0] : null,
  ["Generation", count(pipeline.generation)],
  ["Restarts", count(pipeline.restarts)],
  ["Last progress", ago(pipeline.progress_at)],
  ["Started", ago(pipeline.started_at)],
].filter(Boolean), "facts tiles");

function inDoubt({ in_doubt, oldest_prepared_s }) {
  return isKnown(oldest_prepared_s) ? `${count(in_doubt)}, for ${duration(oldest_prepared_s)}` : count(in_doubt);
}

/** A line for each of what is counted, from before this page was opened. */
function lagPlots(lags) {
  const units = [...new Set(lags.flatMap(({ behind: found }) => Object.keys(found)))];
  return (units.length ? units : ["record"]).map((unit) => plot({
    title: "Lag",
    unit: `${unit}s`,
    points: lags.filter(({ behind: found }) => unit in found).map(({ at, behind: found }) => [Date.parse(at), found[unit]]),
    empty: "The daemon looks every few seconds: two looks make a line.",
  }));
}

/** Rows per second between each completed epoch and the one before. */
function throughput(epochs) {
  const done = epochs.filter((epoch) => epoch.state === "complete" && epoch.completed_at).reverse();
  return done.map((epoch, index) => {
    const at = Date.parse(epoch.completed_at);
    if (!index) return [at, 0];
    return [at, (epoch.rows * 1000) / Math.max(1, at - Date.parse(done[index - 1].completed_at))];
  });
}

const sinks = ({ sinks: all }) => table("Sinks", [["Sink"], ["Kind"], ["Guarantee"], ["Why"]], all.map((sink) => ({
  key: sink.name,
  cells: [h("span", { class: "name" }, sink.name), sink.kind, promise(sink), sink.reason ?? UNKNOWN],
})));

function positions({ source, positions: at, lag }) {
  const title = h("p", null, `${source.kind}: `, h("span", { class: "name" }, source.name));
  const names = Object.keys(at ?? lag ?? {});
  if (!names.length) return [title, h("p", { class: "quiet" }, "No position is known yet.")];
  return [title, table("Positions", [["Partition"], ["Position", true], ["Lag", true]], names.map((partition) => ({
    key: partition,
    cells: [partition.replace(/^[#@]|\/$/g, ""), number(at?.[partition]), number(lag?.[partition])],
  })))];
}

export const number = (value) => (typeof value === "number" || !isKnown(value) ? count(value) : String(value));

function historyTable({ pipeline, history, historyError, older }) {
  if (historyError) return h("p", { class: "problem warn" }, historyError);
  if (!history) return null;
  if (!history.epochs.length) return h("p", { class: "quiet" }, "No epoch yet.");
  const shown = history.isLong ? history.epochs : history.epochs.slice(0, EPOCHS_SHORT);
  const hasState = shown.some((epoch) => epoch.stored_bytes || epoch.state_bytes);
  const columns = [["Epoch"], ["State"], ["Opened"], ["Duration", true], ["Of that"], ["Rows", true], ["Bytes", true],
    ...(hasState ? [["State size", true], ["Stored", true]] : []), ["Sinks"]];
  return [
    table("The newest first. A sink with a tick has acknowledged its part.", columns, shown.map((epoch) => ({
      key: epoch.epoch,
      cells: [
        h("a", { href: link.epoch(pipeline.name, epoch.epoch), "aria-label": `Epoch ${epoch.epoch}` }, epoch.epoch),
        [badge(epoch.state), kind(epoch, pipeline.latest.savepoint)], time(epoch.opened_at), duration(epoch.duration_s), phases(epoch),
        count(epoch.rows), bytes(epoch.bytes), ...(hasState ? [bytes(epoch.state_bytes), bytes(epoch.stored_bytes)] : []),
        acknowledgements(epoch.sinks),
      ],
    })), false),
    history.hasOlder || shown.length < history.epochs.length ? h("p", null, h("button", { type: "button", onclick: older }, "Older epochs")) : null,
  ];
}

/** What else it is than rows, and whether the last savepoint was made from it. */
function kind({ epoch, kind: what, why }, savepoint) {
  const said = [what === "rows" ? null : why ? `${what}: ${why}` : what, savepoint?.epoch === epoch ? `savepoint ${savepoint.name}` : null].filter(Boolean);
  return said.length ? h("span", { class: "quiet" }, ` ${said.join(", ")}`) : null;
}

/** Where its duration went; of one from before this daemon was started, as far as the store knows. */
function phases({ steps: took, duration_s: all, commit_s: commit }) {
  const known = took ? ["run", "prepare", "decide", "commit"].map((name) => [name, took[`${name}_s`]])
    : isKnown(all) && isKnown(commit) ? [["to its decision", all - commit], ["commit", commit]] : [];
  return known.filter(([, value]) => isKnown(value)).map(([name, value]) => `${name} ${duration(value)}`).join(", ") || UNKNOWN;
}
