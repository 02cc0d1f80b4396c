// Calls of the daemon's API. A refusal is an ApiError with the API's code; an Unreachable says that nothing answered.

const PATIENCE_MS = 8000;
const LETTERS_PATIENCE_MS = 70_000; // the daemon gives up before

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export class Unreachable extends Error {}

const KEY = "onefold-key"; // of one daemon's process: another has another

/** Keep the key of a link that `onefold page` printed. Returns whether the address has one. */
export function logIn(hash) {
  const [, key] = hash.match(/^#key=([0-9a-f]{64})$/) ?? [];
  if (key) localStorage.setItem(KEY, key);
  return Boolean(key);
}

const base = (name) => `/pipelines/${encodeURIComponent(name)}`;

export const pipelines = () => call("GET", "/pipelines");
export const epochs = (name, before) => call("GET", `${base(name)}/epochs?limit=50${before ? `&before=${before}` : ""}`);
export const graph = (name) => call("GET", `${base(name)}/graph`);
export const log = (name) => call("GET", `${base(name)}/log`);
export const definition = (name) => call("GET", `${base(name)}/definition`);
export const lags = (name) => call("GET", `${base(name)}/lags`);
export const operators = (name) => call("GET", `${base(name)}/state`);
export const stateOf = (name, uid, state, key) =>
  call("GET", `${base(name)}/state/${encodeURIComponent(uid)}/${encodeURIComponent(state)}?key=${encodeURIComponent(key)}`);
export const epoch = (name, number) => call("GET", `${base(name)}/epochs/${encodeURIComponent(number)}`);
export const act = (name, action) => call("POST", `${base(name)}/${action}`);
export const letters = (name, reason) =>
  call("GET", `${base(name)}/dead-letters${reason ? `?reason=${encodeURIComponent(reason)}` : ""}`, undefined, LETTERS_PATIENCE_MS);
export const reasons = (name) => call("GET", `${base(name)}/dead-letters/reasons`, undefined, LETTERS_PATIENCE_MS);
export const sendAgain = (name, place) => call("POST", `${base(name)}/dead-letters/send`, place, LETTERS_PATIENCE_MS);

async function call(method, path, body, patience_ms = PATIENCE_MS) {
  const headers = { Accept: "application/json" };
  const key = localStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer, found;
  try {
    const sent = body === undefined ? undefined : JSON.stringify(body);
    answer = await fetch(path, { method, headers, body: sent, cache: "no-store", signal: AbortSignal.timeout(patience_ms) });
    found = await answer.json();
  } catch (error) {
    if (answer && !answer.ok) throw new ApiError(answer.status, `http-${answer.status}`, answer.statusText);
    throw new Unreachable(error.message);
  }
  if (!answer.ok) throw new ApiError(answer.status, found.code ?? `http-${answer.status}`, found.message ?? answer.statusText);
  return found;
}
