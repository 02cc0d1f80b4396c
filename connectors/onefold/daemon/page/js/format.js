// Numbers, times and sizes as people read them. Everything that is not known is a dash.

import { h } from "./dom.js";

const WHOLE = new Intl.NumberFormat("en");
const ROUGH = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
export const UNKNOWN = "–";

export const isKnown = (value) => value !== null && value !== undefined;

export const count = (value) => (!isKnown(value) ? UNKNOWN : WHOLE.format(value));
export const rough = (value) => (!isKnown(value) ? UNKNOWN : value < 1000 ? ROUGH.format(value) : WHOLE.format(Math.round(value)));
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** How far a pipeline is behind, by what is counted: `1,200 records, 3 files`. */
export const behind = (found) => (!isKnown(found) || !Object.keys(found).length ? UNKNOWN : Object.entries(found).map(([unit, value]) => plural(value, unit)).join(", "));

export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  const power = Math.min(units.length - 1, value < 1 ? 0 : Math.floor(Math.log10(value) / 3));
  return `${ROUGH.format(value / 1000 ** power)} ${units[power]}`;
}

/** Seconds, in at most two units. */
export function duration(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  if (seconds < 60) return seconds < 10 ? `${ROUGH.format(Math.round(seconds * 100) / 100)} s` : `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const [large, small, unit, rest] =
    whole < 3600 ? [60, 1, "min", "s"] : whole < 86400 ? [3600, 60, "h", "min"] : [86400, 3600, "d", "h"];
  const left = Math.floor((whole % large) / small);
  return `${Math.floor(whole / large)} ${unit}${left ? ` ${left} ${rest}` : ""}`;
}

/** Date and time, as a reader's own clock has them. */
export const clock = (iso) => new Date(iso).toLocaleString("sv-SE");

const utc = (iso) => `${new Date(iso).toISOString().replace("T", " ").slice(0, 19)} UTC`;
export const time = (iso) => (!isKnown(iso) ? UNKNOWN : h("time", { datetime: iso, title: utc(iso) }, clock(iso)));

/** It breaks between day and time alone. */
const date = (iso) => {
  const [day, hour] = clock(iso).split(" ");
  return h("span", { class: "date" }, h("span", null, `(${day}`), " ", h("span", null, `${hour})`));
};

/** How long ago, and when, as a <time>. */
export function ago(iso) {
  if (!isKnown(iso)) return UNKNOWN;
  const seconds = Math.round((Date.now() - new Date(iso)) / 1000);
  const says = seconds < 2 ? "now" : `${duration(seconds)} ago`;
  return h("time", { datetime: iso, title: utc(iso) }, says, " ", date(iso));
}

export const until = (iso) => {
  const seconds = Math.ceil((new Date(iso) - Date.now()) / 1000);
  return seconds > 0 ? `in ${duration(seconds)} (${clock(iso)})` : "now";
};
