// The path of a packet, step by step.

import { asks } from "./asking.js";
import { element, nodeLink } from "./elements.js";

export function start() {
  asks(document.getElementById("packet-question"), "trace", document.getElementById("packet-answer"), show);
}

export function render({ connection }) {
  if (connection) document.getElementById("packet-question").elements.namespace.placeholder = connection.namespace;
}

function show({ node, agrees, trace }) {
  const { packet, assumedOrigin, desired, rulesOf, actual, paths } = trace;
  const rules = rulesOf === "kernel" ? "By the rules in the kernel" : "By the rules that would be programmed";
  return [
    element("p", { class: "answer", role: "status" },
      agrees ? "It goes where it should." : element("b", { class: "bad" }, "It does not go where it should.")),
    element("dl", {}, pair("On node", nodeLink(node)), pair("Packet", packet, assumedOrigin ? ` (${assumedOrigin})` : ""), pair("Desired", desired),
      pair(rules, actual)),
    ...paths.map(({ outcome, steps }) => element("article", {},
      element("h3", {}, "Path to ", element("code", {}, outcome)),
      element("ol", { class: "steps" }, steps.map(step)))),
  ];
}

function pair(term, ...value) {
  return [element("dt", {}, term), element("dd", {}, value)];
}

/** A chain, or what a rule of it found or did. */
function step({ kind, texts }) {
  const [first, ...others] = texts;
  const name = typeof kind === "string" ? kind : "chain";
  return element("li", { "data-kind": name }, element("code", {}, first), others.map((other) => element("div", {}, "or ", element("code", {}, other))));
}
