// A line over time, as SVG. It stretches to its place; its labels are HTML beside it, so that they keep their size.

import { h } from "./dom.js";
import { clock, rough, UNKNOWN } from "./format.js";

const WIDTH = 600;
const HEIGHT = 120;

/** `points` are [milliseconds, value], oldest first; with `steps` a value holds since the point before, so the first
 *  point is only a time. */
export function plot({ title, unit, points, steps = false, empty }) {
  const now = points.length > (steps ? 1 : 0) ? points.at(-1)[1] : undefined;
  const caption = h("figcaption", null, h("span", null, title), h("b", null, now === undefined ? UNKNOWN : `${rough(now)} ${unit}`));
  if (points.length < 2) return h("figure", { class: "plot" }, caption, h("p", { class: "quiet" }, empty));
  const values = (steps ? points.slice(1) : points).map(([, value]) => value);
  const top = ceiling(Math.max(...values));
  const [from, to] = [points[0][0], points.at(-1)[0]];
  const x = (at) => (((at - from) / Math.max(1, to - from)) * WIDTH).toFixed(1);
  const y = (value) => (HEIGHT - (value / top) * (HEIGHT - 4)).toFixed(1);
  const line = points.map(([at, value], index) => {
    if (index === 0) return `M${x(at)} ${y(values[0])}`;
    return steps ? `V${y(value)}H${x(at)}` : `L${x(at)} ${y(value)}`;
  });
  const says = `${title}: ${rough(now)} ${unit} now, between ${rough(Math.min(...values))} and ${rough(Math.max(...values))} since ${clock(from)}`;
  return h("figure", { class: "plot" }, caption,
    h("div", { class: "drawing" },
      h("span", { class: "scale", "aria-hidden": "true" }, h("span", null, rough(top)), h("span", null, "0")),
      h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": says },
        h("path", { class: "grid", d: `M0 ${y(top)}H${WIDTH}M0 ${y(top / 2)}H${WIDTH}M0 ${HEIGHT}H${WIDTH}` }),
        h("path", { class: "area", d: `${line.join("")}V${HEIGHT}H0Z` }),
        h("path", { class: "line", d: line.join("") })),
      h("span", { class: "times", "aria-hidden": "true" }, h("span", null, clock(from)), h("span", null, clock(to)))));
}

/** The next larger of 1, 2, 5, 10, 20, ... */
function ceiling(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}
