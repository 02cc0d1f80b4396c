// The page: what the address names is asked for every two seconds, and drawn. Dead letters are asked for once, and then
// on request: their table may be large.

import * as api from "./api.js";
import { h, render } from "./dom.js";
import { epochView } from "./epoch.js";
import { clock, duration } from "./format.js";
import { lettersView, placeOf } from "./letters.js";
import { overview } from "./overview.js";
import { pipelineView } from "./pipeline.js";

const EVERY_MS = 2000;
const EPOCHS_MAX = 1000; // as many as the store keeps
const place = (id) => document.getElementById(id);

enter();
const state = {
  pipelines: null, // the last answer
  seenAt: null, // when it came
  failing: null, // the error of the calls since then
  doing: null, // {name, action} that was asked for
  sending: null, // the place of the dead letter that is sent again
  said: null, // what the API said to the last action, if it refused
  asked: null, // what a state of the route's pipeline was asked for: {answer} or {error}
  route: route(),
  shown: {}, // what the route asks for: {history, lags, graph, operators, log, definition, epoch, error}, or of letters {found, foundAt, reason, counted, isLoading, error}
  isMoving: false, // to another address: the focus goes to its title
};
let turns = 0;

/** The address of a link that logs in becomes that of the overview. */
function enter() {
  if (api.logIn(location.hash)) window.history.replaceState(null, "", "#/");
}

function route() {
  const [, first, name, kind, number] = location.hash.slice(1).split("/").map(decodeURIComponent);
  if (first !== "pipelines" || !name) return { view: "overview" };
  if (kind === "epochs" && number) return { view: "epoch", name, number };
  if (kind === "dead-letters") return { view: "letters", name };
  return { view: "pipeline", name };
}

async function look() {
  const asked = state.route;
  const turn = ++turns; // only the last question's answer counts
  try {
    const pipelines = await api.pipelines();
    const shown = await detail(asked);
    if (turn !== turns) return;
    tell(pipelines);
    Object.assign(state, { pipelines, seenAt: new Date(), failing: null });
    state.shown = shown ?? state.shown;
  } catch (error) {
    if (turn !== turns) return;
    if (!state.failing) say("The daemon does not answer.");
    state.failing = error;
  }
  draw();
}

/** What the route needs beside the pipelines, null where that is not asked for time and again; an error of the API about it is shown in its place. */
async function detail({ view, name, number }) {
  try {
    if (view === "pipeline") return await parts({
      history: () => history(name),
      lags: async () => (await api.lags(name)).points,
      graph: async () => (await api.graph(name)).svg,
      operators: () => api.operators(name),
      log: async () => (await api.log(name)).lines,
      definition: async () => state.shown.definition ?? (await api.definition(name)).lines, // which stays as it is
    });
    if (view === "epoch") return { epoch: await api.epoch(name, number) };
    if (view === "letters") return null;
  } catch (error) {
    if (!(error instanceof api.ApiError)) throw error;
    return { ...state.shown, error };
  }
  return {};
}

/** Each for itself: the history is the store's, which may not answer. Its error is shown in its place. */
async function parts(asking) {
  const found = await Promise.allSettled(Object.values(asking).map((ask) => ask()));
  const unreachable = found.find(({ reason }) => reason && !(reason instanceof api.ApiError));
  if (unreachable) throw unreachable.reason;
  const known = Object.keys(asking).map((name, at) => [name, found[at].value]);
  return { ...Object.fromEntries(known), error: found[0].reason };
}

/** The newest epochs, and the older ones that were asked for already. */
async function history(name) {
  const newest = (await api.epochs(name)).epochs;
  const known = state.shown.history;
  const last = newest.at(-1)?.epoch;
  const older = known?.isLong ? known.epochs.filter((epoch) => epoch.epoch < last) : [];
  return { epochs: [...newest, ...older].slice(0, EPOCHS_MAX), hasOlder: known?.isLong ? known.hasOlder : newest.length === 50, isLong: known?.isLong ?? false };
}

async function older() {
  const { route: asked, shown } = state;
  if (!shown.history.isLong) { // there are some already that are not shown
    shown.history.isLong = true;
    return draw();
  }
  try {
    const more = (await api.epochs(asked.name, shown.history.epochs.at(-1).epoch)).epochs;
    if (asked !== state.route) return;
    state.shown.history = { epochs: [...state.shown.history.epochs, ...more], hasOlder: more.length === 50, isLong: true };
    say(`${more.length} older epochs.`);
  } catch (error) {
    state.said = error;
  }
  draw();
}

async function ask(uid, kept, key) {
  const { name } = state.route;
  let asked;
  try {
    asked = { answer: (await api.stateOf(name, uid, kept, key))[0] };
  } catch (error) {
    asked = { error: error instanceof api.ApiError ? told(error) : "The daemon does not answer." };
  }
  if (state.route.name === name) state.asked = asked;
  draw();
}

/** The dead letters of the route's pipeline, once. What was found before stays until the answer is there. */
async function load(isAsked, reason = state.shown.reason) {
  const shown = await askingForLetters({ reason }, async (name) => ({ found: await api.letters(name, reason), foundAt: new Date() }));
  if (isAsked && shown && !shown.error) say(`${shown.found.letters.length} dead letters.`);
}

/** How many letters have which reason: it may take the server long, and is asked for by itself. */
async function countReasons() {
  const shown = await askingForLetters({}, async (name) => ({ counted: await api.reasons(name) }));
  if (shown && !shown.error) say(`${shown.counted.length} reasons.`);
}

async function askingForLetters(more, ask) {
  const mine = { ...state.shown, ...more, isLoading: true };
  state.shown = mine;
  draw();
  let answer;
  try {
    answer = { ...(await ask(state.route.name)), error: null };
  } catch (error) {
    answer = { error };
  }
  if (state.shown !== mine) return null;
  state.shown = { ...mine, ...answer, isLoading: false };
  draw();
  return state.shown;
}

async function act(name, action) {
  if (action === "stop" && !(await confirmed(`Stop ${name}?`, "Its epoch completes first, in every sink.", "Stop"))) return;
  Object.assign(state, { doing: { name, action }, said: null });
  draw();
  try {
    await api.act(name, action);
  } catch (error) {
    state.said = error;
  }
  await look();
  state.doing = null;
  draw();
}

async function send(place) {
  const where = placeOf(place);
  const says = `Every reader of topic ${place.topic} gets it once more, at the end of its partition.`;
  if (!(await confirmed(`Send ${where} again?`, says, "Send"))) return;
  Object.assign(state, { sending: where, said: null });
  draw();
  try {
    await api.sendAgain(state.route.name, place);
    say(`${where} was sent again.`);
  } catch (error) {
    state.said = error;
  }
  state.sending = null;
  if (state.route.view === "letters") await load();
}

/** One after the other, the oldest first: what is refused is counted, and where nothing answers it ends. */
async function sendAll(places) {
  const says = "Every reader of their topics gets them once more, at the ends of their partitions.";
  if (!(await confirmed(`Send ${places.length} records again?`, says, "Send"))) return;
  const { name } = state.route;
  let sent = 0, refused = 0;
  state.said = null;
  try {
    for (const place of places) {
      state.sending = placeOf(place);
      draw();
      try {
        await api.sendAgain(name, place);
        sent += 1;
      } catch (error) {
        if (!(error instanceof api.ApiError) || error.status !== 409) throw error;
        refused += 1;
      }
    }
  } catch (error) {
    state.said = error;
  }
  state.sending = null;
  say(`${sent} were sent again${refused ? `, ${refused} were refused` : ""}.`);
  if (state.route.view === "letters" && state.route.name === name) await load();
}

function confirmed(title, text, yes) {
  const dialog = place("confirm");
  place("confirm-title").textContent = title;
  place("confirm-text").textContent = text;
  place("confirm-yes").textContent = yes;
  dialog.returnValue = "";
  place("confirm-yes").onclick = () => dialog.close("yes");
  place("confirm-no").onclick = () => dialog.close("");
  dialog.showModal();
  place("confirm-no").focus();
  return new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
  });
}

/** Changes of state are said aloud; progress is not. */
function tell(pipelines) {
  if (state.failing) say("The daemon answers again.");
  const before = new Map((state.pipelines ?? []).map((pipeline) => [pipeline.name, pipeline.state]));
  const changed = pipelines.filter(({ name, state: now }) => before.has(name) && before.get(name) !== now);
  if (changed.length) say(changed.map(({ name, state: now }) => `${name} is ${now}.`).join(" "));
}

const say = (text) => {
  place("announce").textContent = text;
};

function draw() {
  const { failing, pipelines, route: { view, name } } = state;
  render(place("contact"), contact());
  render(place("alerts"), alerts());
  document.body.classList.toggle("stale", failing !== null && pipelines !== null);
  const had = document.activeElement;
  // Another address is another element, so that its title is news to a screen reader.
  render(place("main"), [h("div", { key: location.hash }, ...content(view, name))]);
  document.title = title();
  const heading = document.querySelector("h1");
  if (heading && (state.isMoving || (had !== document.body && !had.isConnected))) {
    heading.focus();
    state.isMoving = false;
  }
}

function content(view, name) {
  const { failing, pipelines } = state;
  if (pipelines) return view === "overview" ? overview(state) : about(name);
  return failing ? [] : [h("p", { class: "quiet" }, "Asking the daemon…")];
}

function about(name) {
  const pipeline = state.pipelines.find((one) => one.name === name);
  const { shown, route: { view } } = state;
  if (!pipeline) return wrong("Nothing to show", `This daemon has no pipeline ${name}.`);
  if (shown.error && view === "epoch") return wrong("Nothing to show", told(shown.error));
  const context = {
    pipeline, act, older,
    isReachable: state.failing === null,
    doing: state.doing?.name === name ? state.doing.action : null,
  };
  if (view === "letters") {
    const error = shown.error && (shown.error instanceof api.ApiError ? told(shown.error) : "The daemon does not answer.");
    return lettersView({ ...context, ...shown, error, load: (reason) => load(true, reason), countReasons, send, sendAll, sending: state.sending });
  }
  if (view === "epoch") return shown.epoch ? epochView({ ...context, epoch: shown.epoch }) : [];
  return pipelineView({ ...context, history: shown.history, lags: shown.lags ?? [], graph: shown.graph, operators: shown.operators, asked: state.asked, ask, log: shown.log, definition: shown.definition, historyError: shown.error && told(shown.error) });
}

const told = (error) => `${error.message} (${error.code})`;

const wrong = (heading, text) => [
  h("nav", { key: "path", "aria-label": "Path" }, h("a", { href: "#/" }, "All pipelines")),
  h("h1", { key: "h1", tabindex: "-1" }, heading),
  h("p", null, text),
];

const contact = () => {
  if (state.failing) return [state.seenAt ? `last seen ${clock(state.seenAt)}` : "never seen"];
  return state.seenAt ? [`as of ${clock(state.seenAt)}`] : [];
};

function alerts() {
  const { failing, seenAt, said } = state;
  const found = [];
  if (failing instanceof api.ApiError && failing.status === 401) {
    found.push(h("div", { key: "gone", class: "alert warn" }, h("strong", null, "This browser has not logged in to the daemon that runs now."),
      " Its user opens the link that ", h("code", null, "onefold page"), " prints."));
  } else if (failing instanceof api.ApiError) {
    found.push(h("div", { key: "gone", class: "alert bad" }, h("strong", null, "The daemon refuses to answer."), ` ${told(failing)}`));
  } else if (failing) {
    const since = seenAt
      ? `It answered last at ${clock(seenAt)}, ${duration((Date.now() - seenAt) / 1000)} ago. What is shown is from then.`
      : "It has not answered since this page was opened.";
    found.push(h("div", { key: "gone", class: "alert bad" }, h("strong", null, "The daemon is not reachable."), ` ${since}`));
  }
  if (said) {
    found.push(h("div", { key: "said", class: "alert warn", role: "alert" },
      h("span", null, said instanceof api.ApiError ? told(said) : "The daemon does not answer: look whether it has done it."), " ",
      h("button", { type: "button", onclick: () => { state.said = null; draw(); } }, "Dismiss")));
  }
  return found;
}

function title() {
  const { pipelines, failing, route: { view, name, number } } = state;
  if (failing) return "not reachable – onefold";
  if (view === "overview") {
    const bad = (pipelines ?? []).filter((one) => ["failed", "fenced", "waiting"].includes(one.state)).length;
    return bad ? `(${bad}!) onefold` : "onefold";
  }
  const now = pipelines?.find((one) => one.name === name)?.state;
  if (view === "letters") return `dead letters of ${name} – onefold`;
  return view === "epoch" ? `epoch ${number} of ${name} – onefold` : `${name}: ${now ?? "unknown"} – onefold`;
}

async function live() {
  if (state.route.view === "letters") load();
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, EVERY_MS);
      document.onvisibilitychange = () => { if (!document.hidden) { clearTimeout(timer); resolve(); } };
    });
  }
}

window.onhashchange = () => {
  enter();
  Object.assign(state, { route: route(), shown: {}, asked: null, said: null, isMoving: true });
  window.scrollTo(0, 0);
  look();
  if (state.route.view === "letters") load();
};
place("skip").onclick = (event) => {
  event.preventDefault();
  place("main").focus();
};
draw();
live();
