// How long the steps of epochs took: of the last one, and of all that are known.

import { h } from "./dom.js";
import { duration, isKnown, UNKNOWN } from "./format.js";
import { table } from "./parts.js";

export const STEPS = {
  wait: "it waits for records, or for its interval; on Spark also for the next batch",
  open: "the store opens it",
  run: "records are read, processed and written",
  prepare: "the slowest worker prepares what it wrote, and stores its state",
  decide: "what was prepared is verified, and the store decides",
  commit: "each sink commits",
};

/** A table of the epochs that have steps, the newest first. */
export function steps(epochs) {
  const known = epochs.filter((epoch) => epoch.steps);
  if (!known.length) return h("p", { class: "quiet" }, "It is known of epochs that were finished since the daemon was started.");
  const mean = (name) => {
    const took = known.map((epoch) => epoch.steps[`${name}_s`]).filter(isKnown);
    return took.length ? took.reduce((sum, one) => sum + one, 0) / took.length : null;
  };
  const sum = Object.keys(STEPS).reduce((so_far, name) => so_far + (mean(name) ?? 0), 0);
  const several = known.length > 1;
  const columns = [["Step"], [`Epoch ${known[0].epoch}`, true], ...(several ? [[`Mean of ${known.length}`, true]] : []), ["Share", true], ["Meanwhile"]];
  return table("Steps of an epoch", columns, Object.entries(STEPS).map(([name, meanwhile]) => ({
    key: name,
    cells: [
      name, duration(known[0].steps[`${name}_s`]), ...(several ? [duration(mean(name))] : []),
      isKnown(mean(name)) ? share(mean(name) / Math.max(sum, 1e-9)) : UNKNOWN, h("span", { class: "quiet" }, meanwhile),
    ],
  })));
}

const share = (part) => h("span", { class: "share" },
  h("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, h("rect", { width: (100 * part).toFixed(1), height: 10 })),
  h("span", null, `${Math.round(100 * part)} %`));
