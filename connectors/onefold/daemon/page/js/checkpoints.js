// A pipeline's epochs as checkpoints: how many, the latest of each kind, the one that runs, and what the subtasks of its
// operators have acknowledged one with.

import { h } from "./dom.js";
import { ago, bytes, count, duration, isKnown, plural, time, UNKNOWN } from "./format.js";
import { facts, link, table } from "./parts.js";
import { STEPS } from "./steps.js";

const SLOW_S = 10;
const NAMED = 5; // subtasks that an epoch waits for

const none = (what) => h("span", { class: "quiet" }, what);

export function checkpoints({ name, checkpoint, running, spark_state: spark, counts, latest: { completed, failed, savepoint, restore, savepoint_restored: restored } }) {
  const of = ({ epoch }) => h("a", { href: link.epoch(name, epoch) }, `epoch ${epoch}`);
  const copy = ({ name: called, epoch, at }) => [h("span", { class: "name" }, called), `, epoch ${epoch}, `, ago(at)];
  const state = (epoch) => (isKnown(epoch.state_bytes) && epoch.stored_bytes ? `, state ${bytes(epoch.state_bytes)}` : "");
  return [
    runs(running),
    running?.operators.length ? h("details", { key: "running" }, h("summary", null, `Acknowledgements of epoch ${running.epoch}`), operators(running.operators)) : null,
    counts ? facts([
      ["Opened", count(counts.triggered)],
      ["In progress", count(counts.in_progress)],
      ["Complete", count(counts.completed)],
      ["Failed", count(counts.failed)],
      ["Later starts", count(counts.restored)],
    ], "facts tiles") : none("The checkpoint store has not been read yet."),
    facts([
      ["Last complete", completed
        ? [of(completed), ", ", ago(completed.completed_at), ` in ${duration(completed.duration_s)}, ${plural(completed.rows, "row")}`, state(completed)] : none("none yet")],
      ["Last failed", failed ? [of(failed), ` ${failed.state.replace("_", " ")}, `, ago(failed.at), failed.error ? `: ${failed.error}` : ""] : none("none")],
      ["Last savepoint", savepoint ? copy(savepoint) : none("none")],
      ["Last start", restore ? [`generation ${restore.generation}, `, ago(restore.at), resolved(restore)] : none("none")],
      restored ? ["Last savepoint restored", copy(restored)] : null,
      spark ? ["State on Spark", `${plural(spark.rows, "row")}, ${bytes(spark.bytes)}`] : null,
      checkpoint ? ["Its checkpoint", h("code", null, checkpoint)] : null,
    ].filter(Boolean), "facts lines"),
  ];
}

/** What became of the epochs that an earlier start had decided. */
const resolved = ({ epochs_finished: finished }) => finished ? `; epochs decided before: ${count(finished)} finished` : "";

/** The epoch that runs, and which subtasks it waits for. With `onlySlow` nothing of one that is well. */
export function runs(running, onlySlow = false) {
  const took_s = running ? (Date.now() - Date.parse(running.since)) / 1000 : 0;
  const isSlow = took_s > SLOW_S;
  if (!running || (onlySlow && !isSlow)) return null;
  const { waits_for: waits, step } = running;
  const more = waits.length > NAMED ? `; and ${waits.length - NAMED} more` : "";
  return h("div", { key: "runs", class: isSlow ? "problem warn" : false, role: "group", "aria-label": "Running epoch" },
    h("p", null, `Epoch ${running.epoch} runs for ${duration(Math.max(0, took_s))}: ${STEPS[step] ?? step}.`),
    waits.length && step === "run" ? h("p", null, `Not acknowledged by ${waits.slice(0, NAMED).join("; ")}${more}.`) : null);
}

/** What they have acknowledged an epoch with, and unfolded each of their subtasks. */
export function operators(all) {
  const hasState = all.some((one) => one.subtasks.some((each) => each?.state_bytes));
  const overtakes = all.some((one) => one.subtasks.some((each) => each?.how !== undefined && each.how !== "aligned"));
  const figures = (each) => each.length ? [
    duration(Math.max(...each.map((one) => one.aligned_s))), bytes(sum(each, "held_bytes")), duration(Math.max(...each.map((one) => one.prepared_s))),
    ...(overtakes ? [[...new Set(each.map((one) => one.how))].join(", "), bytes(sum(each, "flight_bytes"))] : []),
    ...(hasState ? [bytes(sum(each, "state_bytes")), bytes(sum(each, "stored_bytes"))] : []),
  ] : Array(3 + (overtakes ? 2 : 0) + (hasState ? 2 : 0)).fill(UNKNOWN);
  const columns = (first) => [[first], ["Acknowledged"], ["Alignment", true], ["Held back", true], ["Prepared and stored in", true], ...(overtakes ? [["Barriers"], ["In flight", true]] : []), ...(hasState ? [["State", true], ["Stored", true]] : [])];
  const titled = all.map((one) => ({ ...one, title: one.names.join(" → "), done: one.subtasks.filter(Boolean) }));
  return [
    table("The longest of its subtasks, and the bytes of all", columns("Operators"), titled.map(({ title, subtasks, done }, at) => ({
      key: at,
      cells: [h("span", { class: "name" }, title), `${done.length} of ${subtasks.length}`, ...figures(done)],
    })), false),
    ...titled.map(({ title, subtasks }, at) => h("details", { key: `of ${at}` }, h("summary", null, `Subtasks of ${title}`),
      table(`Subtasks of ${title}`, columns("Worker"), subtasks.map((each, worker) => ({
        key: worker, cells: [worker, each ? time(each.at) : "missing", ...figures(each ? [each] : [])],
      }))))),
  ];
}

const sum = (all, name) => all.reduce((so_far, one) => so_far + one[name], 0);
