// What nodes reject, grouped by the object that it is about.

import { element, nodeNames, show, table } from "./elements.js";

/** The objects that some node rejects. */
export function count({ rejections }) {
  return { number: rejections.objects.length + rejections.moreObjects, unit: "rejected", isFault: false };
}

export function render({ rejections }) {
  if (!rejections) return;
  const { objects, moreObjects, nodesWithMore } = rejections;
  const notes = [];
  if (objects.length === 0) notes.push({ text: "Nodes reject nothing: everything asked for is served." });
  if (moreObjects > 0) notes.push({ text: `${moreObjects} more objects are rejected.` });
  if (nodesWithMore.total > 0) {
    notes.push({ text: "The status of these nodes counts more than the 20 rejections that it names: ", nodes: nodesWithMore });
  }
  show(document.getElementById("rejections-notes"), notes, ({ text }) => text, ({ text, nodes }) =>
    element("p", { class: "hint" }, text, nodes ? nodeNames(nodes) : ""));
  show(document.getElementById("rejections-list"), objects, ({ object }) => object, rejected);
}

function rejected({ object, parts }) {
  const service = /^Service (.+\/.+)$/.exec(object)?.[1];
  return element(
    "article",
    {},
    element("h3", {}, object, service
      ? [" ", element("a", { class: "aside", href: `#service/${encodeURIComponent(service)}`, "data-focus": object }, "explain on all nodes")]
      : ""),
    table("", ["Field", "What happens instead", "Nodes"],
      parts.map(({ field, message, nodes }) => [element("code", {}, field), message,
        element("span", {}, `${nodes.total.toLocaleString("en")}: `, nodeNames(nodes))])),
  );
}
