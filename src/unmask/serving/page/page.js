// The page: which model, and the part for its kind of data.

import { ask, announce, locked, make, onComplaint, read, useKey } from "./shared.js";
import { events } from "./events.js";
import { generic } from "./generic.js";
import { images } from "./images.js";
import { table } from "./table.js";
import { text } from "./text.js";

const parts = { text, table, images, events };
const chooser = document.getElementById("model");
const panel = document.getElementById("panel");
const error = document.getElementById("error");

onComplaint((said) => { error.textContent = said; error.hidden = !said; });

async function show(name) {
  const model = await ask(`models/${encodeURIComponent(name)}`);
  const { parameters, precision } = model.about;
  const size = parameters ? `${parameters < 1e6 ? `${Math.round(parameters / 1e3)} thousand` : `${(parameters / 1e6).toPrecision(3)} M`} parameters, ` : "";
  document.getElementById("about").textContent = `${model.kind[0].toUpperCase()}${model.kind.slice(1)} model: ${size}${precision || ""}. It answers ${Object.keys(model.verbs).join(", ")}.`;
  document.title = `${name}: unmask`;
  const part = parts[model.kind] || generic;
  panel.replaceChildren(...[part(model)].flat());
  announce(`Model ${name} chosen.`);
}

async function begin() {
  const { models } = await ask("models");
  chooser.replaceChildren(...Object.entries(models).map(([name, model]) => make("option", { value: name }, `${name} (${model.kind})`)));
  const wished = decodeURIComponent(location.hash.slice(1));
  if (wished in models) chooser.value = wished;
  await show(chooser.value);
}

function guarded(work) {
  return async () => {
    try {
      await work();
      error.hidden = true;
    } catch (problem) {
      document.getElementById("key-form").hidden = problem.status !== 401;
      error.textContent = problem.message;
      error.hidden = false;
    }
  };
}

chooser.addEventListener("change", guarded(async () => { location.hash = encodeURIComponent(chooser.value); await show(chooser.value); }));
document.getElementById("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(document.getElementById("key").value.trim());
  document.getElementById("key-form").hidden = true;
  guarded(begin)();
});
document.querySelector("nav a").addEventListener("click", async (event) => {
  if (!locked()) return;
  event.preventDefault();
  const requests = new DOMParser().parseFromString(await read("docs"), "text/html");
  document.title = requests.title;
  document.body.className = "docs";
  document.body.replaceChildren(...requests.body.children);
});
guarded(begin)();
