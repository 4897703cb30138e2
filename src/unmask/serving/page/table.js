// Tables: edit a row, clear cells, see distributions, intervals and the survival of this row; draw new rows.

import { announce, ask, bars, drawn, field, interval, latest, later, make, number, section, table as listed } from "./shared.js";

export function table(model) {
  const post = (verb, body) => ask(`models/${encodeURIComponent(model.name)}/${verb}`, body);
  const { columns, duration, event } = model.about;
  const cells = columns.map(cellOf);
  const outcome = (name) => name === duration || name === event;
  const said = make("p", { className: "quiet" });
  const notes = make("ul", { className: "quiet" });
  const curve = make("div", {});

  const row = () => Object.fromEntries(cells.map((cell) => [cell.name, cell.value()]));
  const update = latest(async (current) => {
    const given = row();
    const found = await post("impute", { rows: [given] });
    if (!current()) return;
    for (const cell of cells) cell.show(null);
    for (const one of found.intervals) cells.find((cell) => cell.name === one.column).show(one);
    notes.replaceChildren(...[...found.warnings, ...found.notes].map((line) => make("li", {}, line)));
    said.textContent = found.cells ? `${found.cells} of ${columns.length} cells are filled in.` : "No cell is empty: nothing is filled in.";
    if ("survival" in model.verbs) {
      const lived = await post("survival", { rows: [Object.fromEntries(Object.entries(given).filter(([name]) => !outcome(name)))] });
      if (current()) curve.replaceChildren(survival(lived));
    }
    if (found.cells < columns.length) {
      const scored = (await post("score", { rows: [given] })).results[0];
      if (!current()) return;
      const worst = scored.least_likely;
      said.textContent += ` The row scores ${scored.score.toFixed(1)} nats over ${scored.slots} cells` + (worst ? `; least likely: ${worst.column}.` : ".");
    }
    announce(said.textContent);
  });

  const soon = later(update);
  cells.forEach((cell) => { cell.changed = soon; });
  const example = latest(async (current) => {
    const found = await post("synthesize", { rows: 1, seed: Math.floor(Math.random() * 1e9) });
    if (!current()) return;
    for (const cell of cells) cell.set(found.rows[0][cell.name] ?? null);
    update();
  });
  const buttons = make("div", { className: "row" },
    "synthesize" in model.verbs ? make("button", { type: "button", className: "main", onclick: example }, "Draw a row") : null,
    make("button", { type: "button", onclick: () => { cells.forEach((cell) => cell.set(null)); update(); } }, "Clear all cells"));
  const parts = [section("A row", make("p", { className: "quiet" }, "Empty cells are predicted from the others: the likeliest value with an interval that holds the truth nine times in ten, or the probability of every category."),
    buttons, make("div", { className: "cells" }, ...cells.map((cell) => cell.element)), said, notes)];
  if ("survival" in model.verbs) parts.push(section("Survival of this row", curve));
  if ("synthesize" in model.verbs) { parts.push(synthesis(post)); example(); } else update();
  return parts;
}

function cellOf(column) {
  const cell = { name: column.name, changed: () => {} };
  const input = column.kind === "category"
    ? make("select", {}, make("option", { value: "" }, "(empty)"), ...column.categories.map((name) => make("option", { value: name }, name)))
    : make("input", { type: column.kind === "date" ? "text" : "number", step: "any", placeholder: "(empty)" });
  const output = make("output", {});
  input.oninput = () => cell.changed();
  const [label] = field(column.unit ? `${column.name} (${column.unit})` : column.name, input);
  const clear = make("button", { type: "button", "aria-label": `Clear ${column.name}`, title: "Clear", onclick: () => { input.value = ""; cell.changed(); input.focus(); } }, "×");
  cell.element = make("div", { className: "cell" }, label, make("div", { className: "row" }, input, clear), output);
  cell.value = () => (input.value === "" ? null : column.kind === "quantity" ? Number(input.value) : input.value);
  cell.set = (value) => { input.value = value === null ? "" : value === true ? "True" : value === false ? "False" : String(value); output.replaceChildren(); };
  cell.show = (found) => {
    if (!found) { output.replaceChildren(); return; }
    if (found.probabilities) {
      const ranked = Object.entries(found.probabilities).sort((a, b) => b[1] - a[1]).slice(0, 5);
      output.replaceChildren(bars(ranked, `Predicted ${column.name}`));
      return;
    }
    const text = `${number(found.value)} (${number(found.low)} to ${number(found.high)})`;
    const ends = [column.low, column.high];
    const bar = typeof found.value === "number" && ends.every((end) => typeof end === "number") ? interval(found.low, found.value, found.high, ...ends) : null;
    output.replaceChildren(make("span", {}, text), ...(bar ? [bar] : []));
  };
  return cell;
}

function survival(found) {
  const [wide, high, left, below] = [640, 260, 62, 30];
  const last = found.times[found.times.length - 1] || 1;
  const x = (time) => left + ((wide - left - 10) * time) / last;
  const y = (share) => 16 + (high - below - 16) * (1 - share);
  const shares = found.results[0].survival;
  let path = `M${x(0)},${y(1)}`;
  found.times.forEach((time, n) => { path += `H${x(time).toFixed(1)}V${y(shares[n]).toFixed(1)}`; });
  const lines = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => [drawn("line", { class: "axis", x1: left, x2: wide - 10, y1: y(share), y2: y(share) }),
    Object.assign(drawn("text", { x: 4, y: y(share) + 4 }), { textContent: `${100 * share} %` })]);
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => Object.assign(drawn("text", { x: x(part * last), y: high - 8, "text-anchor": part === 1 ? "end" : "middle" }), { textContent: Number((part * last).toPrecision(3)).toString() }));
  const middle = found.times.findIndex((_, n) => shares[n] < 0.5);
  const about = middle < 0 ? `${Math.round(100 * shares[shares.length - 1])} % have no event up to ${number(last)}.` : `Half have had the event by ${Number(found.times[middle].toPrecision(3))}.`;
  const svg = drawn("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `Survival curve. ${about}` }, ...lines, ...ticks, drawn("path", { class: "curve", d: path }));
  return make("figure", {}, svg, make("figcaption", {}, `Share without the event by time, given the cells above, averaged over what is missing. ${about}`));
}

function synthesis(post) {
  const where = make("input", { size: 36, placeholder: "e.g. age >= 70", autocomplete: "off" });
  const rows = make("input", { type: "number", min: 1, max: 200, value: 5 });
  const answer = make("div", { "aria-live": "polite" });
  const run = latest(async (current) => {
    const found = await post("synthesize", { rows: Number(rows.value) || 5, where: where.value.trim() ? [where.value] : [], seed: Math.floor(Math.random() * 1e9) });
    if (!current()) return;
    answer.replaceChildren(listed(found.rows, "Drawn rows"), make("ul", { className: "quiet" }, ...[...found.warnings, ...found.notes].map((line) => make("li", {}, line))));
  });
  return section("Draw new rows", make("div", { className: "row" }, ...field("Rows", rows), ...field("Under the condition", where),
    make("button", { type: "button", className: "main", onclick: run }, "Draw")), answer);
}
