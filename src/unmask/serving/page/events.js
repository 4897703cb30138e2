// Patients: a timeline of events; hide one, add one, and see what the model expects.

import { announce, ask, bars, drawn, latest, later, make, percent, section } from "./shared.js";

const number = (value) => Number(value.toPrecision(4)).toString();
let lists = 0;

export function events(model) {
  const post = (verb, body) => ask(`models/${encodeURIComponent(model.name)}/${verb}`, body);
  const codes = model.about.known_codes;
  const list = make("datalist", { id: `codes-${++lists}` }, ...codes.map((code) => make("option", { value: code })));
  const body = make("tbody", {});
  const line = make("div", {});
  const answer = make("div", {});
  const rows = example(codes, model.about.valued);
  const question = make("input", { value: model.about.question || "", size: 50, "aria-label": "A question about what is to come", oninput: () => soon() });
  const said = make("div", { role: "status" });
  let before = null;

  const visible = () => rows.filter((row) => row.on && row.code.trim());
  const given = () => [{ events: visible().map((row) => ({ time: row.time || null, code: row.code.trim(), numeric_value: row.value === "" ? null : Number(row.value) })) }];

  const update = latest(async (current) => {
    line.replaceChildren(timeline(rows));
    if (!visible().length) { answer.replaceChildren(make("p", { className: "quiet" }, "Add an event.")); return; }
    answer.classList.add("busy");
    const patients = given();
    let expected, filled, outcome;
    try {
      [expected, filled, outcome] = await Promise.all([post("expect", { patients }), post("fill", { patients, top: 6 }),
        "outcome" in model.verbs ? post("outcome", { patients }) : null]);
    } finally { answer.classList.remove("busy"); }
    if (!current()) return;
    if ("ask" in model.verbs) await told(patients, current);
    const parts = [];
    if (outcome) parts.push(risk(outcome.results[0]));
    const next = filled.results[0].filter((row) => row.kind === "next");
    if (next.length) parts.push(section("Likeliest next events", bars(next.map((row) => [row.value === null ? row.code : `${row.code} ${number(row.value)}`, row.probability]), "Next events"),
      next[0].time ? make("p", { className: "quiet" }, `Expected around ${next[0].time.slice(0, 10)}.`) : null));
    const values = filled.results[0].filter((row) => row.kind === "value");
    if (values.length) parts.push(section("Values that are missing", make("p", { className: "quiet" }, "The median, and an interval that holds the truth nine times in ten."), make("ul", {}, ...values.map((row) =>
      make("li", {}, `${row.code} at ${(row.time || "").slice(0, 10)}: ${number(row.value)} (${number(row.low)} to ${number(row.high)})`)))));
    parts.push(section("What was expected", make("p", { className: "quiet" }, "Each visit hidden alone and predicted from all others: the lower the probability, the more surprising the event."),
      make("div", { className: "wide", tabindex: "0", role: "region", "aria-label": "What was expected" }, make("table", {}, make("thead", {}, make("tr", {}, ...["time", "event", "probability", "likeliest there", "value", "expected (80 %)"].map((name) => make("th", { scope: "col", className: name === "probability" || name === "value" ? "number" : "" }, name)))),
        make("tbody", {}, ...expected.results[0].map((row) => make("tr", {}, make("td", { className: "day" }, (row.time || "").slice(0, 10)), make("td", {}, row.code), make("td", { className: "number" }, percent(row.probability)),
          make("td", {}, row.likeliest), make("td", { className: "number" }, row.value === null ? "" : number(row.value)),
          make("td", {}, row.expected === null ? "" : `${number(row.expected)} (${number(row.low)} to ${number(row.high)})`))))))));
    answer.replaceChildren(...parts);
    announce("Predictions are up to date.");
  });
  const soon = later(update);

  async function told(patients, current) {
    let shown;
    try {
      const [found] = (await post("ask", { patients, questions: [question.value] })).results[0];
      shown = found.probability === null ? found.unanswered : percent(found.probability);
    } catch (error) { shown = error.message; }
    if (current()) said.replaceChildren(make("p", { className: "risk" }, shown));
  }

  function risk(row) {
    const [name, value] = Object.entries(row).find(([, one]) => typeof one === "number") || ["", null];
    const share = name.includes("probability") || name.includes("risk");
    const change = before !== null && value !== null && Math.abs(value - before) > 1e-9 ? ` (${value > before ? "+" : "−"}${share ? `${Number((100 * Math.abs(value - before)).toPrecision(2))} percentage points` : number(Math.abs(value - before))} by your last change)` : "";
    before = value;
    return section("Outcome", make("p", { className: "risk" }, value === null ? JSON.stringify(row) : share ? percent(value) : number(value), make("small", { className: "quiet" }, change)),
      make("p", { className: "quiet" }, share ? "Probability of the outcome that the model was fine-tuned for." : name.replaceAll("_", " ")));
  }

  const show = () => {
    body.replaceChildren(...rows.map((row, n) => {
      const input = (kind, name, more = {}) => make("input", { value: row[name], "aria-label": `${kind} of event ${n + 1}`, ...more, oninput: (event) => { row[name] = event.target.value; soon(); } });
      const tr = make("tr", { className: row.on ? "" : "off" },
        make("td", {}, make("input", { type: "checkbox", checked: row.on, "aria-label": `Event ${n + 1} is visible`, onchange: (event) => { row.on = event.target.checked; tr.className = row.on ? "" : "off"; update(); } })),
        make("td", {}, input("Time", "time", { type: "date" })), make("td", {}, input("Code", "code", { list: list.id, size: 18 })),
        make("td", {}, input("Value", "value", { type: "number", step: "any", size: 8, placeholder: "value" })),
        make("td", {}, make("button", { type: "button", "aria-label": `Remove event ${n + 1}`, onclick: () => { rows.splice(n, 1); show(); update(); } }, "×")));
      return tr;
    }));
  };
  const add = () => {
    const last = rows.map((row) => row.time).filter(Boolean).sort().pop() || "2020-01-01";
    rows.push({ time: last, code: codes[0] || "", value: "", on: true });
    show();
    body.querySelector("tr:last-child input[list]").focus();
    update();
  };
  show();
  update();
  return [section("A patient", line, list, make("div", { className: "wide" }, make("table", { className: "patient" }, make("thead", {}, make("tr", {}, ...["visible", "time", "code", "value", ""].map((name) => make("th", { scope: "col" }, name)))), body)),
    make("div", { className: "row" }, make("button", { type: "button", onclick: add }, "Add an event"), make("span", { className: "quiet" }, "Untick an event to hide it from the model; leave a value empty to have it predicted."))),
    ...("ask" in model.verbs ? [section("What is to come", make("p", { className: "quiet" }, "How probable is it, after the last event? For example: CODE within 30 days, CODE > 10 within 1 year, none of A, B within 1 year."), question, said)] : []), answer];
}

function example(codes, valued) {
  const plain = codes.map((code, n) => [code, valued[n]]).filter(([code]) => !code.startsWith("MEDS_DEATH") && !code.startsWith("MEDS_BIRTH"));
  const out = [];
  ["2020-01-10", "2020-04-02", "2020-09-15"].forEach((time, visit) => plain.slice(0, 4).forEach(([code, has], n) => {
    if ((n + visit) % 4 !== 3) out.push({ time, code, value: "", on: true, has });
  }));
  return out;
}

function timeline(rows) {
  const timed = rows.filter((row) => row.time && row.code.trim());
  const days = timed.map((row) => Date.parse(row.time)).filter((day) => !Number.isNaN(day));
  if (!days.length) return make("p", { className: "quiet" }, "No event has a time yet.");
  const [from, to] = [Math.min(...days), Math.max(...days)];
  const x = (day) => 20 + (600 * (day - from)) / (to - from || 1);
  const stacked = new Map();
  const dots = timed.filter((row) => !Number.isNaN(Date.parse(row.time))).map((row) => {
    const level = stacked.get(row.time) || 0;
    stacked.set(row.time, level + 1);
    return drawn("circle", { class: row.on ? "event" : "gone", cx: x(Date.parse(row.time)), cy: 70 - 12 * Math.min(level, 5), r: 5 },
      Object.assign(drawn("title"), { textContent: `${row.time}: ${row.code}${row.on ? "" : " (hidden)"}` }));
  });
  const end = (day, anchor) => Object.assign(drawn("text", { x: x(day), y: 100, "text-anchor": anchor }), { textContent: new Date(day).toISOString().slice(0, 10) });
  return drawn("svg", { viewBox: "0 0 640 110", role: "img", "aria-label": `Timeline of ${timed.length} events` }, drawn("line", { class: "axis", x1: 10, x2: 630, y1: 82, y2: 82 }),
    ...dots, end(from, "start"), ...(to > from ? [end(to, "end")] : []));
}
