// Questions that the program passes on to agents.

import { element } from "./elements.js";

/** Makes `form` ask `path` with its fields; `show` makes elements of the answer, which go into `place`. */
export function asks(form, path, place, show) {
  let asked = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    // Another question takes the place of one that is not answered yet.
    asked?.abort();
    const own = (asked = new AbortController());
    place.setAttribute("aria-busy", "true");
    place.replaceChildren(element("p", { class: "hint", role: "status" }, "Asking…"));
    const shown = await answer(path, new FormData(form), own.signal).then(show, failed);
    if (own !== asked) return;
    place.removeAttribute("aria-busy");
    place.replaceChildren(...shown);
  });
}

async function answer(path, fields, signal) {
  const token = sessionStorage.getItem("token");
  const headers = { Authorization: `Bearer ${token}` };
  const response = await fetch(`${path}?${new URLSearchParams(fields)}`, { headers, signal });
  const found = await response.json();
  if (!response.ok) throw found;
  return found;
}

function failed({ error, message, advice }) {
  return [element("div", { class: "note", role: "status" },
    element("p", {}, `no answer: ${error ?? message}`),
    advice ? element("p", { class: "next" }, element("b", {}, "Next: "), advice) : null)];
}
