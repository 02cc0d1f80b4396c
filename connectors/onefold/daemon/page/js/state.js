// What an operator keeps of a key: asked for once, by a field.

import { h } from "./dom.js";
import { count } from "./format.js";
import { table } from "./parts.js";

export function stateView({ operators, asked, ask, isReachable }) {
  const places = operators.flatMap(({ uid, key, states }) => states.map((state) => ({ uid, state, key })));
  const submit = () => {
    const { uid, state } = places[document.getElementById("state-of").selectedIndex];
    ask(uid, state, keyOf(document.getElementById("state-key").value));
  };
  return [
    h("div", { class: "buttons" },
      h("label", null, "Of ", h("select", { id: "state-of" }, places.map(({ uid, state, key }) =>
        h("option", { key: `${uid} ${state}` }, `${uid}: ${state} by ${key.join(", ")}`)))),
      h("label", null, "the key ", h("input", { id: "state-key", type: "text", maxlength: "1000", onkeydown: (event) => event.key === "Enter" && submit() })),
      h("button", { type: "button", "aria-disabled": isReachable ? "false" : "true", onclick: isReachable ? submit : null }, "Ask")),
    asked ? h("div", { role: "status" }, ...(asked.error ? [h("p", { class: "problem warn" }, asked.error)] : found(asked.answer))) : null,
  ];
}

/** A JSON list of the key's values, or these between commas. */
function keyOf(text) {
  if (text.startsWith("[")) return text;
  return JSON.stringify(text === "" ? [] : text.split(",").map((value) => value.trim()));
}

const found = ({ rows, epoch }) => rows.length
  ? [table(`As of epoch ${count(epoch)}, which is complete.`, Object.keys(rows[0]).map((name) => [name]), rows.map((row, index) => ({
    key: String(index),
    cells: Object.values(row).map((value) => (typeof value === "string" ? value : JSON.stringify(value))),
  })), false)]
  : [h("p", null, `Nothing, as of epoch ${count(epoch)}.`)];
