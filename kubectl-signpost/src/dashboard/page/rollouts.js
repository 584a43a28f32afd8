// What blocks a rollout, and what to do.

import { count as counted, element, nodeNames, show, table, time, troubleItem } from "./elements.js";

/** Where each rollout was when it was last told. */
let told = null;

/** What has become of rollouts since the last call, for screen readers in whichever view: text, or nothing. */
export function news({ rollouts }) {
  const now = new Map(rollouts.profiles.map((found) => [found.name, found.stage.stopped?.reason ?? found.stage]));
  const others = rollouts.profiles.filter(({ name }) => told && told.get(name) !== now.get(name));
  told = now;
  return others.map((found) => `ProxyProfile ${found.name}: ${answer(found)}`).join(" ");
}

/** The profiles that are unhealthy or in progress. */
export function count({ rollouts }) {
  const found = rollouts.profiles.filter(({ health }) => health !== "healthy");
  const isFault = found.some(({ health }) => health === "unhealthy");
  return { number: found.length, unit: "not healthy", isFault };
}

export function render({ rollouts }) {
  if (!rollouts) return;
  show(document.getElementById("rollouts-notes"), notes(rollouts), ({ text }) => text, note);
  show(document.getElementById("rollouts-list"), rollouts.profiles, ({ name }) => name, profile);
}

function notes({ isRead, profiles, nodesWithoutConfiguration, unreadable }) {
  const found = unreadable.map(({ object, reason }) => ({
    text: `${object} cannot be read: ${reason}`,
    next: "use the version of kubectl-signpost that belongs to the installed operator.",
  }));
  if (isRead && profiles.length === 0) {
    found.push({
      text: "There is no ProxyProfile: nodes keep their last configuration or have the defaults, and report no status.",
      next: "create one; `kubectl signpost config import` converts kube-proxy's configuration into one.",
    });
  }
  if (nodesWithoutConfiguration.total > 0) {
    found.push({
      text: "Nodes without a configuration of Signpost: ",
      nodes: nodesWithoutConfiguration,
      next:
        "if that is not intended, look for them in the profiles' condition Ready, which names nodes where no agent can run; " +
        "for others, compare their labels with the profiles' nodeSelector.",
    });
  }
  return found;
}

function note({ text, nodes, next }) {
  return element("div", { class: "note" }, element("p", {}, text, nodes ? nodeNames(nodes) : ""), nextStep(next));
}

function nextStep(text) {
  return element("p", { class: "next" }, element("b", {}, "Next: "), text);
}

function profile(found) {
  const { name, health, state, mode, priority, generation, paused, syncLatency, progress, troubles, reasons, worstNodes } = found;
  return element(
    "article",
    { "data-health": health, "aria-labelledby": `profile-${name}` },
    element("h3", { id: `profile-${name}` }, "ProxyProfile ", element("code", {}, name), ": ",
      element("span", { class: "state", "data-health": health }, state)),
    element("p", { class: "facts" }, `mode ${mode}, priority ${priority}, generation ${generation}${paused ? ", paused" : ""}`,
      syncLatency ? `; sync p99 ${syncLatency.p99} on the slowest node` : ""),
    element("p", { class: "answer" }, answer(found)),
    element("p", { class: "progress" }, progress),
    commands(found.commands),
    waves(found.rollout),
    troubles.length ? element("ul", { class: "troubles" }, troubles.map(troubleItem)) : null,
    reasons.length ? table("Unhealthy nodes", ["Reason", "Nodes", "What to do"],
      reasons.map(({ reason, nodes, advice }) => [
        element("code", {}, reason),
        [counted(nodes.total, "node"), ": ", nodeNames(nodes)],
        advice ?? "",
      ])) : null,
    worstNodes.length ? table("Nodes to look at first", ["Node", "Reason", "p99"],
      worstNodes.map((worst) => [
        nodeNames({ first: [worst.name], total: 1 }),
        element("code", {}, worst.reason),
        worst.p99Microseconds === undefined ? "" : duration(worst.p99Microseconds),
      ])) : null,
  );
}

/** One sentence. */
function answer({ stage, rollout, nodes }) {
  if (stage === "finished") {
    return `Nothing blocks it: ${nodes.updated} of ${counted(nodes.matched, "node")} have the change.`;
  }
  if (stage === "going") {
    return rollout?.waitingFor ? `It continues, and waits for ${rollout.waitingFor}.` : "It continues.";
  }
  const { reason, message } = stage.stopped;
  return `It has stopped: ${reason}${message ? `: ${message}` : ""}`;
}

function commands(found) {
  if (!found.length) return null;
  return element("div", { class: "commands" }, element("p", {}, element("b", {}, "Commands:")),
    element("ul", {}, found.map(({ command, effect }) => element("li", {}, element("code", {}, command), ` ${effect}`))));
}

function waves(rollout) {
  if (!rollout?.waves?.length || rollout.phase === "Settled") return null;
  const { waves, wave, since, phase } = rollout;
  const made = table("Waves", ["Wave", "Nodes", "Available", "Updated", "Failed", "Waiting", ""],
    waves.map((found, index) => [
      index + 1 === wave ? element("b", {}, `${index + 1} (current)`) : `${index + 1}`,
      `${found.nodes}`,
      `${found.available}`,
      `${found.updated}`,
      found.failed ? element("b", { class: "bad" }, `${found.failed}`) : "0",
      `${found.waiting}`,
      bar(found),
    ]));
  made.querySelector("caption").append(` – ${phase}, `, time(since));
  return made;
}

/** A wave as a bar; the figures are beside it. */
function bar({ nodes, available, updated, failed }) {
  const part = (kind, number) => {
    const made = element("span", { class: kind });
    made.style.flexGrow = number;
    return made;
  };
  const changing = Math.max(0, updated - available - failed);
  return element("div", { class: "bar", "aria-hidden": "true" }, part("available", available), part("updated", changing),
    part("failed", failed), part("rest", Math.max(0, nodes - available - changing - failed)));
}

function duration(microseconds) {
  if (microseconds < 1000) return `${microseconds}µs`;
  if (microseconds < 1000000) return `${microseconds / 1000}ms`;
  return `${microseconds / 1000000}s`;
}
