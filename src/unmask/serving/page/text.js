// Text: click words to hide them, see what the model would put there, how surprised it is by each, and what else it does.

import { announce, ask, bars, field, latest, later, make, percent, section, warned } from "./shared.js";
import { generic } from "./generic.js";

const FIRST = "Water boils at one hundred degrees, and the steam rises to the ceiling.";

export function text(model) {
  const post = (verb, body) => ask(`models/${encodeURIComponent(model.name)}/${verb}`, body);
  const has = (verb) => verb in model.verbs;
  const found = [];
  if (has("fill")) found.push(hide(post));
  if (has("zeroshot")) found.push(labels(post));
  for (const verb of ["classify", "tag"]) if (has(verb)) found.push(predicted(post, verb));
  if (has("answer")) found.push(questions(post));
  if (has("similarity")) found.push(alike(post));
  return found.length ? found : generic(model);
}

function hide(post) {
  const input = make("textarea", { value: FIRST, spellcheck: "false" });
  const tokens = make("div", { className: "tokens", role: "group", "aria-label": "Words of the text; press one to hide it" });
  const jointly = make("input", { type: "checkbox", checked: true });
  const coloured = make("input", { type: "checkbox" });
  const top = make("input", { type: "number", min: 1, max: 50, value: 5 });
  const answer = make("div", {});
  let known = { text: "", mask: "[MASK]", words: [] };

  const words = (row) => {
    const out = [];
    for (const token of row.tokens) {
      const last = out[out.length - 1];
      if (last && token.word >= 0 && last.word === token.word) { last.end = token.end; last.pieces += 1; }
      else out.push({ ...token, pieces: 1, hidden: false, heat: null });
    }
    for (const word of out) {  // a space in front belongs to the text around it
      while (word.start < word.end && /\s/.test(known.text[word.start])) word.start += 1;
    }
    return out.filter((word) => word.end > word.start);
  };

  const masked = () => {
    let at = 0, out = "";
    for (const word of known.words) {
      out += known.text.slice(at, word.start) + (word.hidden ? known.mask.repeat(word.pieces) : known.text.slice(word.start, word.end));
      at = word.end;
    }
    return out + known.text.slice(at);
  };

  const show = () => {
    const parts = [];
    let at = 0;
    for (const word of known.words) {
      const shown = known.text.slice(word.start, word.end);
      const surprise = word.heat === null ? "" : `, surprise ${word.heat.toFixed(1)} nats`;
      const button = make("button", { type: "button", "aria-pressed": String(word.hidden), title: surprise.slice(2) || null,
        "aria-label": `${shown}${word.hidden ? ", hidden" : ""}${surprise}`, onclick: () => {
          word.hidden = !word.hidden;
          button.setAttribute("aria-pressed", String(word.hidden));
          fill();
        } }, shown);
      if (word.heat !== null) button.style.setProperty("--heat", Math.min(0.85, word.heat / 12).toFixed(2));
      parts.push(known.text.slice(at, word.start), button);
      at = word.end;
    }
    tokens.replaceChildren(...parts, known.text.slice(at));
    tokens.classList.toggle("coloured", coloured.checked);
  };

  const fill = latest(async (current) => {
    const hidden = known.words.filter((word) => word.hidden);
    if (!hidden.length) {
      answer.replaceChildren(make("p", { className: "quiet" }, "Press a word to hide it. Hidden words are predicted from the others."));
      return;
    }
    answer.classList.add("busy");
    const blanks = hidden.reduce((sum, word) => sum + word.pieces, 0);
    const found = await post("fill", { texts: masked(), top: Number(top.value) || 5, steps: jointly.checked ? Math.min(64, blanks) : 1 }).finally(() => answer.classList.remove("busy"));
    if (!current()) return;
    const result = found.results[0];
    let slot = 0;
    const lists = hidden.map((word) => {
      const stood = known.text.slice(word.start, word.end);
      return make("div", {}, make("h3", {}, `Instead of “${stood}”`), ...result.slots.slice(slot, slot += word.pieces).flatMap((one, piece) => [
        ...(word.pieces > 1 ? [make("p", { className: "quiet" }, `Piece ${piece + 1} of ${word.pieces}`)] : []),
        bars(one.candidates.map((c) => [c.value, c.probability]), `Candidates for ${stood}${word.pieces > 1 ? `, piece ${piece + 1}` : ""}`)]));
    });
    answer.replaceChildren(make("p", { className: "filled" }, result.filled),
      make("p", { className: "quiet" }, `Joint probability of what was filled in: ${percent(Math.exp(result.log_probability))}`), ...warned(found), make("div", { className: "columns" }, ...lists));
    announce(`Filled: ${result.filled}`);
  });

  const surprise = latest(async (current) => {
    if (!coloured.checked) { known.words.forEach((word) => { word.heat = null; }); show(); return; }
    const row = (await post("score", { texts: known.text, tokens: true })).results[0];
    if (!current()) return;
    for (const word of known.words) {
      const own = row.tokens.filter((token) => token.start < word.end && token.end > word.start && token.log_probability !== null);
      word.heat = own.length ? -own.reduce((sum, token) => sum + token.log_probability, 0) : null;
    }
    show();
    announce(row.score === null ? "The text holds no token that is scored." : `The text scores ${row.score.toFixed(1)} nats over ${row.slots} tokens.`);
  });

  const read = latest(async (current) => {
    const found = await post("tokens", { texts: input.value });
    if (!current()) return;
    const before = known.text === input.value ? known.words.filter((w) => w.hidden).map((w) => w.start) : [];
    known = { text: input.value, mask: found.mask, words: [] };
    known.words = words(found.results[0]);
    known.words.forEach((word) => { word.hidden = before.includes(word.start); });
    show();
    fill();
    if (coloured.checked) surprise();
  });

  input.oninput = later(read);
  jointly.onchange = top.onchange = () => fill();
  coloured.onchange = () => surprise();
  const nobody = make("button", { type: "button", onclick: () => { known.words.forEach((word) => { word.hidden = false; }); show(); fill(); } }, "Show all words");
  read().then(() => { if (known.words.length > 1) { known.words[1].hidden = true; show(); fill(); } });
  return section("Hide words", ...field("Text", input), tokens, make("div", { className: "row" },
    make("span", {}, ...field(" Several jointly", jointly).reverse()), make("span", {}, ...field(" Colour by surprise", coloured).reverse()),
    make("span", {}, ...field("Candidates ", top)), nobody), answer);
}

function labels(post) {
  const input = make("textarea", { value: "The soup was cold and the waiter rude." });
  const names = make("input", { value: "good, bad", size: 40 });
  const answer = make("div", { "aria-live": "polite" });
  const run = latest(async (current) => {
    const found = await post("zeroshot", { texts: input.value, labels: names.value.split(",").map((name) => name.trim()).filter(Boolean) });
    if (!current()) return;
    const row = found.results[0];
    if (!row.probabilities) { answer.replaceChildren(make("p", { className: "quiet" }, "There is nothing to read: no label."), ...warned(found)); return; }
    answer.replaceChildren(bars(Object.entries(row.probabilities).sort((a, b) => b[1] - a[1]), "Labels"),
      make("p", { className: "quiet" }, `By ${found.method}: ${found.template.join(" | ")}`), ...warned(found));
  });
  return section("Label without training", ...field("Text", input), make("div", { className: "row" }, ...field("Labels, commas between", names),
    make("button", { type: "button", className: "main", onclick: run }, "Label")), answer);
}

function predicted(post, verb) {
  const input = make("textarea", { value: FIRST });
  const answer = make("div", { "aria-live": "polite" });
  const run = latest(async (current) => {
    const found = await post(verb, { texts: [input.value] });
    if (!current()) return;
    const row = found.results[0];
    if (verb === "tag") {
      const parts = [];
      let at = 0;
      for (const entity of row.entities || []) {
        parts.push(input.value.slice(at, entity.start), make("mark", { title: percent(entity.probability) }, entity.text, make("small", {}, ` ${entity.label}`)));
        at = entity.end;
      }
      answer.replaceChildren(make("p", { className: "filled" }, ...parts, input.value.slice(at)));
    } else if (row.probabilities) {
      answer.replaceChildren(bars(Object.entries(row.probabilities).sort((a, b) => b[1] - a[1]).slice(0, 20), "Labels"));
    } else answer.replaceChildren(make("p", { className: "risk" }, String(row.value ?? row.label)));
    answer.append(...warned(found));
  });
  return section(verb === "tag" ? "Find entities" : "Classify", ...field("Text", input),
    make("div", { className: "row" }, make("button", { type: "button", className: "main", onclick: run }, verb === "tag" ? "Find" : "Classify")), answer);
}

function questions(post) {
  const question = make("input", { value: "What rises?", size: 50 });
  const context = make("textarea", { value: FIRST });
  const answer = make("div", { "aria-live": "polite" });
  const run = latest(async (current) => {
    const found = await post("answer", { questions: [{ question: question.value, context: context.value }] });
    if (!current()) return;
    const row = found.results[0], best = row.answer;
    answer.replaceChildren(best?.text ? make("p", { className: "filled" }, context.value.slice(0, best.start), make("mark", {}, best.text), context.value.slice(best.end))
      : make("p", {}, "No answer in this text."), bars((row.nbest || []).slice(0, 5).map((one) => [one.text, one.probability]), "Answers"), ...warned(found));
  });
  return section("Answer questions", make("div", { className: "row" }, ...field("Question", question)), ...field("Text to look in", context),
    make("div", { className: "row" }, make("button", { type: "button", className: "main", onclick: run }, "Answer")), answer);
}

function alike(post) {
  const input = make("input", { value: "Water boils at one hundred degrees.", size: 50 });
  const others = make("textarea", { value: "Steam rises from hot water.\nThe cat sat on the mat.\nShares fell on Monday." });
  const answer = make("div", { "aria-live": "polite" });
  const run = latest(async (current) => {
    const lines = others.value.split("\n").filter((line) => line.trim());
    const found = await post("similarity", { text: input.value, others: lines });
    if (!current()) return;
    const ranked = lines.map((line, n) => ({ text: line, cosine: found.similarities[n] })).sort((a, b) => b.cosine - a.cosine);
    answer.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Text"), make("th", { scope: "col" }, "Cosine"))),
      make("tbody", {}, ...ranked.map((row) => make("tr", {}, make("td", {}, row.text), make("td", { className: "number" }, row.cosine.toFixed(3)))))), ...warned(found));
  });
  return section("Compare texts", make("div", { className: "row" }, ...field("Text", input)), ...field("Others, one per line", others),
    make("div", { className: "row" }, make("button", { type: "button", className: "main", onclick: run }, "Compare")), answer);
}
