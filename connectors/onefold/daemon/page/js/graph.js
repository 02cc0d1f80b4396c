// A pipeline's graph: the API's picture, with this page's colours.

import { h } from "./dom.js";

const TAGS = ["svg", "defs", "marker", "path", "rect", "text"];
const ATTRIBUTES = ["class", "d", "height", "id", "marker-end", "markerHeight", "markerUnits", "markerWidth", "orient", "refX", "refY", "rx", "viewBox", "width", "x", "y"];

/** Nothing before there is a picture. */
export function graph(svg, name) {
  if (!svg) return h("p", { class: "quiet" }, "It is known once the pipeline has started.");
  return h("div", { class: "graph", tabindex: "0", role: "group", "aria-label": `Graph of ${name}` }, element(svg, { role: "img", "aria-label": spoken(svg) }));
}

function element({ tag, attributes, children }, more = {}) {
  const known = Object.entries(attributes).filter(([name]) => ATTRIBUTES.includes(name));
  const shown = children.filter((child) => typeof child === "string" || TAGS.includes(child.tag));
  return h(tag, { ...Object.fromEntries(known), ...more }, shown.map((child) => (typeof child === "string" ? child : element(child))));
}

/** The names of its operators, and what flows between them. */
const spoken = ({ children }) => children.filter(({ attributes }) => ["title", "figure", "label"].includes(attributes?.class)).flatMap((text) => text.children).join("; ");
