// Any verb of any model: the body as JSON, the answer as JSON.

import { ask, field, latest, make, section } from "./shared.js";

export function generic(model) {
  const verbs = Object.keys(model.verbs);
  const verb = make("select", {}, ...verbs.map((name) => make("option", { value: name }, name)));
  const body = make("textarea", { rows: 8, spellcheck: "false" });
  const about = make("p", { className: "quiet" });
  const answer = make("pre", { tabindex: "0", "aria-live": "polite" });
  const chosen = () => {
    about.textContent = model.verbs[verb.value].about;
    body.value = JSON.stringify(model.verbs[verb.value].example ?? {}, null, 1);
  };
  const send = latest(async (current) => {
    let given;
    try { given = JSON.parse(body.value); } catch (error) { throw new Error(`The body is not JSON: ${error.message}`); }
    const found = await ask(`models/${encodeURIComponent(model.name)}/${verb.value}`, given);
    if (current()) answer.textContent = JSON.stringify(found, null, 1);
  });
  verb.onchange = chosen;
  chosen();
  return section("Ask it", make("div", { className: "row" }, ...field("Verb", verb)), about, ...field("Body", body),
    make("div", { className: "row" }, make("button", { className: "main", type: "button", onclick: send }, "Ask")), answer);
}
