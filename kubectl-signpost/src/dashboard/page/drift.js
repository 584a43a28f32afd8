// Which programs change Signpost's rules, and on which nodes.

import { count as counted, element, nodeLink, show, table, time } from "./elements.js";

/** The programs that changed rules. */
export function count({ drift }) {
  const { programs } = drift;
  return { number: programs.length, unit: "programs that changed rules", isFault: programs.some(({ contested }) => contested > 0) };
}

export function render({ drift }) {
  if (!drift) return;
  const notes = drift.programs.length ? [] : ["No agent has repaired anything since its start: the rules are as Signpost wrote them."];
  show(document.getElementById("drift-notes"), notes, (text) => text, (text) => element("p", { class: "hint" }, text));
  show(document.getElementById("drift-list"), drift.programs, ({ name }) => name ?? "", program);
}

function program({ name, total, contested, advice, first }) {
  const held = contested ? `, and keeps changing them on ${contested === total ? "all of them" : counted(contested, "node")}` : "";
  const more = total - first.length;
  return element(
    "article",
    { "data-health": contested ? "unhealthy" : "pending" },
    element("h3", {}, name ? element("code", {}, name) : "Programs that the kernel did not name"),
    element("p", { class: "answer" }, `Changed rules on ${counted(total, "node")}${held}. The agents repaired them.`),
    advice ? element("p", { class: "next" }, element("b", {}, "Next: "), advice) : null,
    table("", ["Node", "Repairs", "What they wrote", "Last change"], first.map(({ node, repairs, changed, lastFound }) =>
      [nodeLink(node), repairs.toLocaleString("en"), changed, time(lastFound)])),
    more > 0 ? element("p", { class: "hint" }, `and on ${counted(more, "more node")}`) : null,
  );
}
