// One Service on all nodes, differences only.

import { asks } from "./asking.js";
import { count as counted, element, nodeNames } from "./elements.js";

/** The Service that was last asked about because the address names it. */
let asked = null;

export function start() {
  asks(document.getElementById("service-question"), "explain", document.getElementById("service-answer"), show);
}

export function render(_, argument) {
  if (!argument || argument === asked) return;
  asked = argument;
  const form = document.getElementById("service-question");
  form.elements.about.value = argument;
  form.requestSubmit();
}

function show({ summary, differing, unanswered }) {
  return [
    element("p", { class: "answer", role: "status" }, summary),
    ...differing.map((group) => nodesWith(group, "unhealthy")),
    ...unanswered.map((group) => nodesWith(group, "pending")),
  ];
}

function nodesWith({ nodes, lines }, health) {
  const title = health === "unhealthy" ? "with differences" : "without an answer";
  return element("article", { "data-health": health },
    element("h3", {}, `${counted(nodes.length, "node")} ${title}: `, nodeNames({ first: nodes.slice(0, 10), total: nodes.length })),
    element("ul", { class: "lines" }, lines.map((line) => element("li", {}, element("code", {}, line)))));
}
