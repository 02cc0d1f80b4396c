// A pipeline's graph: the API's picture, made of this page's elements, so that it has this page's colours.

import { h } from "./dom.js";

const KEPT = ["class", "d", "height", "id", "marker-end", "markerHeight", "markerUnits", "markerWidth", "orient", "refX", "refY", "rx", "viewBox", "width", "x", "y"];
const LEFT_OUT = ["style", "title"];

/** Nothing before there is a picture. */
export function graph(svg, name) {
  if (!svg) return h("p", { class: "quiet" }, "It is known once the pipeline has started.");
  const drawing = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
  return h("div", { class: "graph", tabindex: "0", role: "group", "aria-label": `Graph of ${name}` }, element(drawing, { role: "img", "aria-label": spoken(drawing) }));
}

function element(node, more = {}) {
  const props = { ...more };
  for (const name of KEPT) if (node.hasAttribute(name)) props[name] = node.getAttribute(name);
  const children = [...node.childNodes].filter(({ localName }) => !LEFT_OUT.includes(localName));
  return h(node.localName, props, children.map((child) => (child.nodeType === Node.TEXT_NODE ? child.data.trim() || null : element(child))));
}

const spoken = (drawing) => [...drawing.querySelectorAll("text.title, text.label")].map(({ textContent }) => textContent).join("; ");
