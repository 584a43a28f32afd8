// The page: what the program reports, and which view is shown.

import * as drift from "./drift.js";
import { element, refreshTimes } from "./elements.js";
import * as nodes from "./nodes.js";
import * as packet from "./packet.js";
import * as rejections from "./rejections.js";
import * as rollouts from "./rollouts.js";
import * as service from "./service.js";

/**
 * Each view by the name that is in the address behind #: `count` is for its link, `render` shows what is known of the thing that the address names,
 * `start` is called once, `news` is for screen readers.
 */
const VIEWS = { rollouts, nodes, rejections, drift, service, packet };
const FIRST = "rollouts";
/** The time between two attempts to reach the program, in milliseconds. */
const RETRY = 1000;

/** What the program last said, a part for each name. */
const facts = { connection: null, rollouts: null, nodes: new Map(), rejections: null, drift: null };

// --- the token ---

/** The token of the printed address: out of the address at once, and kept for reloads of this tab. */
function takeToken() {
  const found = /^#token=([0-9a-f]+)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem("token", found[1]);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token");
}

// --- changes ---

/** Follows changes without end: each connection begins with everything. */
async function follow(token) {
  for (;;) {
    try {
      const answer = await fetch("changes", { headers: { Authorization: `Bearer ${token}` } });
      if (answer.status === 401) return showConnection("lost", await answer.text());
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      await readLines(answer.body, (line) => apply(JSON.parse(line)));
    } catch {
      // Whatever it was: the program is asked again.
    }
    showConnection("lost", "the command that serves this page does not answer: start it again, and open the address that it prints");
    await new Promise((wake) => setTimeout(wake, RETRY));
  }
}

async function readLines(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const [first, ...others] = value.split("\n");
    parts.push(first);
    for (const next of others) {
      const line = parts.join("");
      parts = [next];
      if (line) take(line);
    }
  }
}

function apply(change) {
  if (change.connection) {
    facts.connection = change.connection;
    const { server, state, text, since, advice } = change.connection;
    document.getElementById("server").textContent = server;
    showConnection(state, text, since, advice);
  } else if (facts.connection) {
    const { state, text, since, advice } = facts.connection;
    showConnection(state, text, since, advice);
  }
  if (change.nodes) {
    if (change.nodes.whole) facts.nodes.clear();
    for (const node of change.nodes.put) facts.nodes.set(node.name, node);
    for (const name of change.nodes.gone) facts.nodes.delete(name);
  }
  for (const [name, view] of Object.entries(VIEWS)) {
    if (change[name] === undefined) continue;
    if (name !== "nodes") facts[name] = change[name];
    const { number, unit, isFault } = view.count(facts);
    const badge = document.getElementById(`count-${name}`);
    badge.dataset.weight = isFault ? "fault" : "pending";
    badge.replaceChildren(...(number ? [number.toLocaleString("en"), element("span", { class: "unseen" }, ` ${unit}`)] : []));
    const news = view.news?.(facts);
    if (news) document.getElementById("news").textContent = news;
    if (name === shown.view) view.render(facts, shown.argument);
  }
}

let said = "";

/** Says how the connection is, to screen readers only when it is another. */
function showConnection(state, text, since, advice) {
  const key = JSON.stringify([state, text, since, advice]);
  if (key === said) return;
  said = key;
  const words = { live: text, loading: text, lost: `not live: ${text}` }[state];
  const at = since ? ` (since ${new Date(since).toLocaleTimeString()})` : "";
  const place = document.getElementById("connection");
  place.dataset.state = state;
  place.replaceChildren(words + at, advice ? element("span", { class: "next" }, ` Next: ${advice}`) : "");
}

// --- views ---

let shown = { view: null, argument: null };

/** Shows the view that the address names: `#nodes`, or `#nodes/n1` for one of its things. */
function navigate(event) {
  const [name, ...rest] = location.hash.slice(1).split("/");
  if (event && !VIEWS[name]) return;
  const view = VIEWS[name] ? name : FIRST;
  const isOther = view !== shown.view;
  shown = { view, argument: rest.length ? decodeURIComponent(rest.join("/")) : null };
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const heading = document.querySelector(`#${view} > h2`);
  document.title = `${document.querySelector(`nav a[href="#${view}"]`).firstChild.data.trim()} – Signpost`;
  VIEWS[view].render(facts, shown.argument);
  // A screen reader reads on from where the user has gone to.
  if (event && isOther) heading.focus();
}

const token = takeToken();
for (const view of Object.values(VIEWS)) view.start?.(() => facts);
navigate();
addEventListener("hashchange", (event) => {
  // The printed address in a tab that has the page already: the browser loads nothing for what is behind #.
  if (location.hash.startsWith("#token=")) location.reload();
  else navigate(event);
});
setInterval(refreshTimes, 1000);
if (token) follow(token);
else showConnection("lost", "this address lacks the token: open the one that the command printed");
