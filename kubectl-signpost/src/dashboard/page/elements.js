// Elements from values. Texts come from the cluster, so they are only ever set as text.

/** An element with attributes and children; children that are no nodes become text. `null` and `false` are left out. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return made;
}

/**
 * Shows `items` in `parent`, each as `render` makes it. Elements of items that have not changed stay, and the focus stays on
 * what has the same `data-focus`.
 */
export function show(parent, items, keyOf, render) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const key = keyOf(item);
    const content = JSON.stringify(item);
    const old = known.get(key);
    if (old?.content === content) return old;
    const made = render(item);
    made.dataset.key = key;
    made.content = content;
    return made;
  });
  const focused = parent.contains(document.activeElement) && document.activeElement.dataset.focus;
  if (!isSame([...parent.children], wanted)) parent.replaceChildren(...wanted);
  if (focused && !parent.contains(document.activeElement)) {
    parent.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }
}

export function isSame(one, other) {
  return one.length === other.length && one.every((item, index) => item === other[index]);
}

/** `3 nodes`, `1 node`. */
export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** Names as links to their nodes, and how many more there are. */
export function nodeNames({ first, total }) {
  const links = first.flatMap((name, index) => [index ? ", " : "", nodeLink(name)]);
  return element("span", {}, links, total > first.length ? ` and ${(total - first.length).toLocaleString("en")} more` : "");
}

export function nodeLink(name) {
  return element("a", { href: `#nodes/${encodeURIComponent(name)}`, "data-focus": `node ${name}` }, name);
}

/** A time as people read it: how long ago, with the time itself as its title. */
export function time(text) {
  const then = new Date(text);
  const made = element("time", { datetime: text, title: then.toLocaleString() });
  made.textContent = ago(then);
  return made;
}

function ago(then) {
  const seconds = Math.max(0, Math.round((Date.now() - then) / 1000));
  if (seconds < 120) return `${seconds} s ago`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} days ago`;
}

/** Times grow old while nothing changes. */
export function refreshTimes() {
  for (const shown of document.querySelectorAll("time")) {
    const text = ago(new Date(shown.dateTime));
    if (shown.textContent !== text) shown.textContent = text;
  }
}

/** A table of rows of cells below the titles of columns. */
export function table(caption, head, rows) {
  return element(
    "table",
    {},
    caption ? element("caption", {}, caption) : null,
    element("thead", {}, element("tr", {}, head.map((title) => element(title ? "th" : "td", title ? { scope: "col" } : {}, title)))),
    element("tbody", {}, rows.map((cells) => element("tr", {}, cells.map((cell) => element("td", {}, cell))))),
  );
}

/** A trouble as `status` prints it: what it is, and what to do. */
export function troubleItem({ weight, condition, status, reason, message, advice }) {
  return element(
    "li",
    { "data-weight": weight },
    element("p", {}, element("b", { class: "weight" }, weight), " ",
      `${condition} is ${status}, `, element("code", {}, reason), message ? `: ${message}` : ""),
    advice && weight !== "note" ? element("p", { class: "next" }, element("b", {}, "Next: "), advice) : null,
  );
}
