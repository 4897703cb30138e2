// What the parts of the page share: asking the server, and making elements.

let key = "";
let complain = () => {};

export function onComplaint(say) { complain = say; }
export function useKey(text) { key = text; }

// An element: make("button", {type: "button", onclick: f}, "text", child, ...)
export function make(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on") || ["value", "checked", "disabled", "textContent", "className", "htmlFor"].includes(name)) element[name] = value;
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function drawn(tag, given = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

async function send(path, body) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  try {
    return await fetch(path, body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) });
  } catch {
    throw Object.assign(new Error("The server does not answer. Is it still running?"), { status: 0 });
  }
}

export async function ask(path, body) {
  const answer = await send(path, body);
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok || found.error) {
    const said = found.error || { what: `Answered with ${answer.status}, not by this server.`, hint: "Is it running behind its proxy?" };
    throw Object.assign(new Error([said.what, said.hint].filter(Boolean).join("\n")), { status: answer.status });
  }
  return found;
}

// Another page of this server, which a link cannot open where a key is asked for.
export async function read(path) { return (await send(path)).text(); }
export const locked = () => key !== "";

// Runs work, shows what goes wrong, and drops answers that a later call has overtaken.
export function latest(work) {
  let turn = 0;
  return async (...given) => {
    const mine = ++turn;
    try {
      const found = await work(() => mine === turn, ...given);
      if (mine === turn) complain("");
      return found;
    } catch (error) {
      if (mine === turn) complain(error.message);
    }
  };
}

export function later(work, milliseconds = 350) {
  let timer;
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => work(...given), milliseconds); };
}

export function announce(text) { document.getElementById("said").textContent = text; }

export const percent = (share) => (share >= 0.9995 ? "100 %" : share >= 0.1 ? `${(100 * share).toFixed(0)} %` : `${(100 * share).toPrecision(2)} %`);
export const number = (value) => (typeof value === "number" ? Number(value.toPrecision(6)).toString() : String(value));

// A list of [name, share] as bars, read out as text.
export function bars(pairs, about) {
  const most = Math.max(...pairs.map(([, share]) => share), 1e-9);
  return make("ul", { className: "bars", "aria-label": about }, ...pairs.map(([name, share]) => {
    const fill = make("div", { className: "fill" });
    fill.style.width = `${(100 * share) / Math.max(most, 0.02)}%`;
    return make("li", {}, make("span", { className: "name", title: name }, name),
      make("div", { className: "track", "aria-hidden": "true" }, fill), make("span", { className: "share" }, percent(share)));
  }));
}

// Where an interval lies between two ends.
export function interval(low, value, high, from, to) {
  const place = (x) => `${Math.min(100, Math.max(0, (100 * (x - from)) / (to - from || 1)))}%`;
  const span = make("div", { className: "span" });
  const point = make("div", { className: "point" });
  span.style.left = place(low);
  span.style.right = `calc(100% - ${place(high)})`;
  point.style.left = place(value);
  return make("div", { className: "interval", "aria-hidden": "true" }, span, point);
}

export function table(rows, about) {
  if (!rows.length) return make("p", { className: "quiet" }, "No rows.");
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return make("div", { className: "wide", tabindex: "0", role: "region", "aria-label": about }, make("table", {},
    make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col", className: typeof rows[0][name] === "number" ? "number" : "" }, name)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...names.map((name) => {
      const value = row[name];
      return make("td", { className: typeof value === "number" ? "number" : "" }, value === null || value === undefined ? "" : number(value));
    }))))));
}

// What the model could not read as it was meant.
export function warned(found) { return found.warnings.map((line) => make("p", { className: "quiet" }, line)); }

// What a file holds, as a data: address.
export function contentOf(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(new Error("The file cannot be read."));
    reader.readAsDataURL(file);
  });
}

// Files that are dropped on an element go to `take`, one at a time, as those of a chooser do.
export function drops(element, take) {
  element.ondragover = (event) => { event.preventDefault(); element.classList.add("over"); };
  element.ondragleave = () => element.classList.remove("over");
  element.ondrop = (event) => {
    event.preventDefault();
    element.classList.remove("over");
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  };
  return element;
}

let count = 0;
export function field(label, input) {
  input.id = input.id || `field-${++count}`;
  return [make("label", { htmlFor: input.id }, label), input];
}

export function section(title, ...children) {
  const id = `section-${++count}`;
  return make("section", { "aria-labelledby": id }, make("h2", { id }, title), ...children);
}
