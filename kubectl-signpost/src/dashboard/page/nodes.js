// The grid of nodes: a square for each, which arrow keys move between, and a description of the chosen one.

import { count as counted, element, isSame, time, troubleItem } from "./elements.js";

const LETTERS = { nftables: "N", iptables: "I", ipvs: "V" };
const LATENCIES = {
  longer: "more than 100 ms",
  hundredMilliseconds: "at most 100 ms",
  tenMilliseconds: "at most 10 ms",
  millisecond: "at most 1 ms",
  unknown: "not measured",
};
/** What a node is grouped by, and in which order groups come: the most pressing first. */
const GROUPINGS = {
  state: ({ state }) => state,
  mode: ({ mode }) => mode ?? "no mode reported",
  profile: ({ profile }) => profile || "no profile",
  latency: ({ latency }) => LATENCIES[latency],
  kernel: ({ kernelVersion }) => kernelVersion || "no kernel reported",
  agent: ({ agentVersion }) => agentVersion || "no version reported",
};
const FIRST = ["unhealthy", "in progress", "healthy", "without a configuration", ...Object.values(LATENCIES)];

/** The distance from one square to the next in pixels, which the style sheet has as well. */
const PITCH = 24;
/** The rows of a block. */
const ROWS = 5;

let facts = null;
/** The squares in a row. */
let columns = 1;
/** The squares by node, each with the row it shows. */
const cells = new Map();
/** The sections by what their nodes have in common. */
const sections = new Map();
/** The squares that are shown, in order. */
let order = [];
let chosen = null;

/** The nodes that are unhealthy or in progress. */
export function count({ nodes }) {
  let number = 0;
  let isFault = false;
  for (const { health } of nodes.values()) {
    number += health !== "healthy";
    isFault ||= health === "unhealthy";
  }
  return { number, unit: "not healthy", isFault };
}

export function start(read) {
  const form = document.getElementById("nodes-filter");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => render(read(), null));
  const grid = document.getElementById("nodes-grid");
  new ResizeObserver(() => fit(grid) && facts && render(read(), null)).observe(grid);
  grid.addEventListener("keydown", move);
  grid.addEventListener("focusin", ({ target }) => choose(target.dataset.node));
  grid.addEventListener("click", ({ target }) => target.dataset.node && target.focus());
}

export function render(known, argument) {
  facts = known;
  const form = document.getElementById("nodes-filter");
  const text = form.elements.text.value.trim().toLowerCase();
  const groupOf = GROUPINGS[form.elements.group.value];
  const groups = new Map();
  let number = 0;
  for (const name of sortedNames(facts.nodes)) {
    const row = facts.nodes.get(name);
    if (text && !matches(row, text)) continue;
    number += 1;
    const group = groupOf(row);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(cellOf(row));
  }
  for (const name of cells.keys()) if (!facts.nodes.has(name)) cells.delete(name);
  lay(groups);
  const total = facts.nodes.size;
  const said = number === total ? counted(total, "node") : `${number.toLocaleString("en")} of ${counted(total, "node")}`;
  const output = document.getElementById("nodes-count");
  if (output.textContent !== said) output.textContent = said;
  if (argument && facts.nodes.has(argument)) choose(argument, true);
  else if (!chosen || !order.includes(cells.get(chosen))) setTabStop(order[0]);
  describe();
}

const collator = new Intl.Collator("en", { numeric: true });
const byName = collator.compare;

let sorted = [];

/** The names in order. Sorting thousands takes longer than all the rest, so it is done for other names only. */
function sortedNames(nodes) {
  if (sorted.length !== nodes.size || !sorted.every((name) => nodes.has(name))) sorted = [...nodes.keys()].sort(byName);
  return sorted;
}

function matches(row, text) {
  const { name, profile, reason, mode, kernelVersion, agentVersion, state, troubles } = row;
  const texts = [name, profile, reason, mode, kernelVersion, agentVersion, state, ...troubles.map((trouble) => trouble.reason)];
  return texts.some((known) => known?.toLowerCase().includes(text));
}

/** The square of a node, changed only where the row has. */
function cellOf(row) {
  let cell = cells.get(row.name);
  if (cell?.row === row) return cell;
  if (!cell) {
    cell = element("span", { class: "cell", role: "option", tabindex: "-1", "data-node": row.name, "aria-selected": "false" });
    cells.set(row.name, cell);
  }
  cell.row = row;
  const { name, state, mode, reason, syncP99, troubles } = row;
  cell.textContent = LETTERS[mode] ?? "–";
  cell.dataset.health = row.profile ? row.health : "none";
  cell.dataset.latency = row.latency;
  const why = troubles[0]?.reason ?? reason;
  cell.setAttribute("aria-label", [name, state, why, mode, syncP99 && `p99 ${syncP99}`].filter(Boolean).join(", "));
  cell.title = `${name}: ${state}`;
  return cell;
}

/** Counts the squares that fit in a row; returns whether there are more or fewer than before. */
function fit(grid) {
  const before = columns;
  // A hidden view has no width.
  if (grid.clientWidth) columns = Math.max(1, Math.floor(grid.clientWidth / PITCH));
  grid.style.setProperty("--columns", columns);
  return columns !== before;
}

function lay(groups) {
  const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  const names = [...groups.keys()].sort((a, b) => rank(a) - rank(b) || byName(a, b));
  const focused = document.activeElement;
  const wanted = names.map((name) => {
    if (!sections.has(name)) sections.set(name, sectionOf(name));
    const section = sections.get(name);
    const content = groups.get(name);
    const title = `${name}: ${counted(content.length, "node")}`;
    if (section.heading.textContent !== title) section.heading.textContent = title;
    fillBlocks(section.box, content);
    return section.place;
  });
  for (const name of sections.keys()) if (!groups.has(name)) sections.delete(name);
  const grid = document.getElementById("nodes-grid");
  if (!isSame([...grid.children], wanted)) grid.replaceChildren(...wanted);
  order = names.flatMap((name) => groups.get(name));
  // A square that has moved to another group takes the focus with it.
  if (focused?.dataset?.node && document.activeElement !== focused && focused.isConnected) focused.focus({ preventScroll: true });
}

/** Puts `content` into `box`, in blocks of whole rows: the browser lays out and paints only blocks in sight, not thousands of squares. */
function fillBlocks(box, content) {
  const size = columns * ROWS;
  for (let at = 0; at < content.length; at += size) {
    const block = box.children[at / size] ?? box.appendChild(element("div", { class: "block", role: "none" }));
    const part = content.slice(at, at + size);
    // The height while it is out of sight.
    block.style.setProperty("--rows", Math.ceil(part.length / columns));
    fill(block, part);
  }
  while (box.children.length * size >= content.length + size) box.lastElementChild.remove();
}

/** Puts `content` into `box`, in this order, and touches only squares that come, go or move. */
function fill(box, content) {
  const wanted = new Set(content);
  for (const cell of [...box.children]) if (!wanted.has(cell)) cell.remove();
  let next = box.firstElementChild;
  for (const cell of content) {
    if (cell === next) next = next.nextElementSibling;
    else box.insertBefore(cell, next);
  }
}

let numbered = 0;

function sectionOf(name) {
  const id = `group-${(numbered += 1)}`;
  const heading = element("h3", { id });
  const box = element("div", { class: "cells", role: "listbox", "aria-labelledby": id, "aria-orientation": "horizontal" });
  return { heading, box, place: element("section", { class: "group", "data-group": name }, heading, box) };
}

function setTabStop(cell) {
  for (const old of document.querySelectorAll('#nodes-grid [tabindex="0"]')) old.tabIndex = -1;
  if (cell) cell.tabIndex = 0;
}

/** The node is described, and where Tab enters the grid. */
function choose(name, scrolls = false) {
  if (!name) return;
  if (chosen !== name) cells.get(chosen)?.setAttribute("aria-selected", "false");
  chosen = name;
  const cell = cells.get(name);
  cell?.setAttribute("aria-selected", "true");
  setTabStop(cell);
  if (scrolls) cell?.scrollIntoView({ block: "nearest" });
  describe();
}

function move(event) {
  const at = order.indexOf(event.target);
  if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
  const to = {
    ArrowRight: () => at + 1,
    ArrowLeft: () => at - 1,
    ArrowDown: () => below(at, 1),
    ArrowUp: () => below(at, -1),
    Home: () => 0,
    End: () => order.length - 1,
  }[event.key]?.();
  if (to === undefined) return;
  event.preventDefault();
  order[Math.min(order.length - 1, Math.max(0, to))]?.focus();
}

/** The square in the next row, `step` 1 or -1, that is nearest. */
function below(at, step) {
  const { left, top } = order[at].getBoundingClientRect();
  let best = at;
  let rowTop = null;
  for (let next = at + step; order[next]; next += step) {
    const box = order[next].getBoundingClientRect();
    if (box.top === top) continue;
    if (rowTop !== null && box.top !== rowTop) break;
    if (rowTop === null || Math.abs(box.left - left) < Math.abs(order[best].getBoundingClientRect().left - left)) best = next;
    rowTop = box.top;
  }
  return best;
}

let described = null;

function describe() {
  const row = facts?.nodes.get(chosen);
  if (row === described) return;
  described = row;
  const place = document.getElementById("node");
  if (!row) {
    place.replaceChildren(element("p", { class: "hint" }, chosen ? `Node ${chosen} is gone.` : "Choose a node."));
    return;
  }
  const { name, state, health, profile, mode, ready, reason, degraded, services, syncP99, lastSyncTime, appliedHash, rejected } = row;
  const pairs = [
    ["Profile", profile],
    ["Mode", mode],
    ["Ready", ready && `${ready}, ${reason}`],
    ["Degraded", degraded],
    ["Services", profile && String(services)],
    ["Rejected", profile && String(rejected)],
    ["Sync p99", syncP99],
    ["Last sync, as reported", lastSyncTime && time(lastSyncTime)],
    ["Hash", appliedHash],
    ["Agent", row.agentVersion],
    ["Kernel", row.kernelVersion],
  ];
  place.replaceChildren(
    element("h3", {}, element("code", {}, name), ": ",
      element("span", { class: "state", "data-health": profile ? health : "none" }, state)),
    element("dl", {}, pairs.filter(([, value]) => value).flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)])),
    row.troubles.length ? element("ul", { class: "troubles" }, row.troubles.map(troubleItem)) : "",
  );
}
