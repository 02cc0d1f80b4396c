// Dead letters: what could not be read or written, why, how often, and buttons that send records again.

import { h } from "./dom.js";
import { bytes, clock, count, isKnown, time } from "./format.js";
import { badge, facts, link, table } from "./parts.js";

export function lettersView({
  pipeline: { name }, found, foundAt, reason, counted, error, isLoading, load, countReasons, send, sendAll, sending, isReachable,
}) {
  const isBusy = isLoading || !isReachable;
  const sendable = (found?.letters ?? []).filter(({ can_send: can }) => can).map(({ place }) => place).reverse();
  return [
    h("nav", { key: "path", "aria-label": "Path" },
      h("a", { href: link.all() }, "All pipelines"), " / ", h("a", { href: link.pipeline(name) }, name)),
    h("h1", { key: "title", tabindex: "-1" }, `Dead letters of ${name}`),
    h("p", { key: "what", class: "quiet" }, "The newest of each sink: records that could not be read, and rows that a sink refused."),
    h("div", { key: "load", class: "buttons" },
      button(isLoading ? "Loading…" : "Load again", isBusy, () => load(reason)),
      button("Count by reason", isBusy, countReasons),
      sendable.length > 1 ? button(`Send all ${sendable.length} again`, isBusy || sending !== null, () => sendAll(sendable)) : null,
      foundAt ? h("p", { class: "quiet" }, `as of ${clock(foundAt)}`) : null),
    error ? h("p", { key: "error", class: "problem warn", role: "alert" }, error) : null,
    counted ? reasons(counted, isBusy, load) : null,
    reason ? h("div", { key: "only", class: "buttons" },
      h("p", null, "Only those with “", h("span", { class: "said" }, reason), "” in their reason."), button("Show all", isBusy, () => load(""))) : null,
    ...(found ? letters(found, send, sending, isReachable) : []),
  ].filter(Boolean);
}

const button = (text, isBusy, onclick, more) =>
  h("button", { type: "button", "aria-disabled": isBusy ? "true" : false, onclick: isBusy ? null : onclick }, text, more);

const reasons = (counted, isBusy, load) => h("section", { key: "reasons" },
  counted.length ? table("How many have which reason", [["Letters", true], ["Sink"], ["Epochs"], ["Reason"], [""]],
    counted.map((one) => ({ key: `${one.sink} ${one.reason}`, cells: [
      count(one.letters),
      h("span", { class: "name" }, one.sink),
      `${count(one.first_epoch)} to ${count(one.last_epoch)}`,
      h("span", { class: "said" }, one.reason),
      button("Show", isBusy, () => load(one.reason), h("span", { class: "unseen" }, ` those with ${one.reason}`)),
    ] })), false) : h("p", null, "There are none to count."));

const letters = (found, send, sending, isReachable) => [
  ...found.elsewhere.map((sink) => h("p", { key: `elsewhere ${sink}` },
    "Those in ", h("span", { class: "name" }, sink), " are in no Postgres table: read them where they are.")),
  found.letters.length ? null : h("p", { key: "none" }, "There are none here."),
  h("ul", { key: "letters", class: "letters" }, found.letters.map((letter, index) =>
    h("li", { key: letter.place ? placeOf(letter.place) : `${letter.sink} ${index}`, class: "card" },
      ...card(letter, send, sending, isReachable)))),
];

export const placeOf = ({ topic, partition, offset }) => `${topic}/${partition} offset ${offset}`;

function card(letter, send, sending, isReachable) {
  const { place, sent } = letter;
  const where = place ? placeOf(place) : `A row for ${letter.sink}`;
  const isSent = sent?.state === "sent";
  const isIdle = isSent || sending !== null || !isReachable;
  return [
    h("h2", null, where, sent ? badge(sent.state === "sent" ? "sent again" : "not known whether sent") : null),
    h("p", { class: "said" }, letter.reason),
    facts([
      ["Epoch", count(letter.epoch)],
      isKnown(letter.at) ? ["Time", time(letter.at)] : null,
      ["Size", bytes(letter.value_bytes)],
    ].filter(Boolean)),
    h("details", null, h("summary", null, "Content"),
      letter.position ? part("Position", JSON.stringify(letter.position)) : null,
      place ? part("Key", letter.key) : null,
      part(place ? "Value" : "Row", letter.value),
      letter.headers.map(({ key, value }) => part(`Header ${key}`, value))),
    letter.can_send || isSent ? h("div", { class: "buttons" }, // the button stays, so that what it did is seen where it is
      h("button", {
        type: "button",
        "aria-disabled": isIdle ? "true" : false,
        onclick: isIdle ? null : () => send(place),
      }, isSent ? "Sent again" : sending === placeOf(place) ? "Sending…" : "Send again", h("span", { class: "unseen" }, ` ${where}`)),
      isSent ? h("p", null, time(sent.at), `, offset ${count(sent.offset)}`) : null) : null,
  ];
}

const part = (name, text) => [h("p", { class: "quiet" }, name), isKnown(text) ? h("pre", { tabindex: "0", role: "group", "aria-label": name }, text) : h("p", null, "none")];
