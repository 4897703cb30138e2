// Pictures: paint what is hidden, see the original, what the model saw and what it made of it.

import { announce, ask, bars, contentOf, drops, field, latest, make, percent, section, warned } from "./shared.js";
import { segment } from "./segment.js";

export function images(model) {
  if ("segment" in model.verbs) return segment(model);
  const post = (verb, body) => ask(`models/${encodeURIComponent(model.name)}/${verb}`, body);
  const { height, width, grid, channels, depth } = model.about;
  const scale = Math.max(1, Math.round(448 / Math.max(height, width)));
  const canvas = make("canvas", { width: width * scale, height: height * scale, tabindex: "0", role: "application",
    "aria-label": "The picture as a grid of patches. Arrow keys move, space hides or shows a patch, enter fills." });
  const source = make("canvas", { width, height });
  const pen = canvas.getContext("2d");
  const hidden = Array.from({ length: grid[0] }, () => Array(grid[1]).fill(0));
  const at = { row: 0, column: 0, seen: false };
  const answer = make("div", {});
  const fills = "reconstruct" in model.verbs;
  let sent = null; // the file in base64: the server decodes it as it does every request's

  const draw = () => {
    pen.imageSmoothingEnabled = false;
    pen.drawImage(source, 0, 0, canvas.width, canvas.height);
    if (!fills) return;
    const [high, wide] = [canvas.height / grid[0], canvas.width / grid[1]];
    pen.fillStyle = "rgba(120, 120, 128, .92)";
    pen.strokeStyle = "rgba(128, 128, 128, .35)";
    hidden.forEach((line, row) => line.forEach((gone, column) => {
      if (gone) pen.fillRect(column * wide, row * high, wide, high);
      else pen.strokeRect(column * wide + 0.5, row * high + 0.5, wide - 1, high - 1);
    }));
    if (at.seen) {
      pen.lineWidth = 3; pen.strokeStyle = "#ff8a3c";
      pen.strokeRect(at.column * wide + 1.5, at.row * high + 1.5, wide - 3, high - 3);
      pen.lineWidth = 1;
    }
  };

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    const cut = (value, most) => Math.min(most - 1, Math.max(0, Math.floor(value)));
    return [cut(((event.clientY - box.top) / box.height) * grid[0], grid[0]), cut(((event.clientX - box.left) / box.width) * grid[1], grid[1])];
  };
  let paints = null;
  canvas.onpointerdown = (event) => {
    if (!fills) return;
    const [row, column] = place(event);
    paints = 1 - hidden[row][column];
    hidden[row][column] = paints;
    canvas.setPointerCapture(event.pointerId);
    draw();
  };
  canvas.onpointermove = (event) => {
    if (paints === null) return;
    const [row, column] = place(event);
    hidden[row][column] = paints;
    draw();
  };
  canvas.onpointerup = canvas.onpointercancel = () => { if (paints !== null) { paints = null; fill(); } };
  canvas.onfocus = () => { at.seen = canvas.matches(":focus-visible"); draw(); };
  canvas.onblur = () => { at.seen = false; draw(); };
  canvas.onkeydown = (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (moves) {
      at.row = Math.min(grid[0] - 1, Math.max(0, at.row + moves[0]));
      at.column = Math.min(grid[1] - 1, Math.max(0, at.column + moves[1]));
    } else if (event.key === " ") hidden[at.row][at.column] = 1 - hidden[at.row][at.column];
    else if (event.key === "Enter") fill();
    else return;
    event.preventDefault();
    at.seen = true;
    draw();
    announce(`Row ${at.row + 1}, column ${at.column + 1}: ${hidden[at.row][at.column] ? "hidden" : "visible"}.`);
  };

  const fill = latest(async (current) => {
    if (!sent) return;
    if (!fills) return classify();
    const count = hidden.flat().reduce((sum, one) => sum + one, 0);
    if (!count) { answer.replaceChildren(make("p", { className: "quiet" }, "Paint over the picture to hide a part of it.")); return; }
    if (count === grid[0] * grid[1]) throw new Error("Everything is hidden: leave something for the model to see.");
    answer.classList.add("busy");
    const found = await post("reconstruct", { images: [sent], mask: hidden }).finally(() => answer.classList.remove("busy"));
    if (!current()) return;
    const row = found.results[0];
    const seen = make("img", { src: `data:image/png;base64,${row.original}` });
    await seen.decode();
    if (!current()) return;
    source.getContext("2d").drawImage(seen, 0, 0, width, height);
    draw();
    const shown = [["original", "The original"], ["hidden", "What the model sees"], ["filled", "Filled in"]];
    answer.replaceChildren(make("div", { className: "pictures" }, ...shown.map(([name, caption]) =>
      make("figure", {}, make("img", { src: `data:image/png;base64,${row[name]}`, alt: caption }), make("figcaption", {}, caption)))),
      make("p", { className: "quiet" }, `${percent(row.share_hidden)} of the pixels are hidden.`), ...warned(found));
    announce(`${percent(row.share_hidden)} of the pixels were hidden and predicted.`);
  });
  const classify = latest(async (current) => {
    const found = await post("classify", { images: [sent] });
    const row = found.results[0];
    if (!current()) return;
    answer.replaceChildren(row.probabilities ? bars(Object.entries(row.probabilities).sort((a, b) => b[1] - a[1]).slice(0, 10), "Classes") : make("p", { className: "risk" }, String(row.value)), ...warned(found));
  });

  // A preview; what the model sees is what the server makes of the file, and takes its place.
  const take = (content, picture) => {
    sent = content.split(",")[1];
    const context = source.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, width, height);
    if (picture) {
      const part = Math.min(picture.width / width, picture.height / height);
      context.drawImage(picture, (picture.width - width * part) / 2, (picture.height - height * part) / 2, width * part, height * part, 0, 0, width, height);
    }
    draw();
    fill();
  };
  const chooser = make("input", { type: "file" });
  const open = latest(async (current, file) => take(await contentOf(file), await createImageBitmap(file).catch(() => null)));
  chooser.onchange = () => { if (chooser.files.length) open(chooser.files[0]); };
  const draws = depth === "uint8" && (channels === 1 || channels === 3);
  const scene = () => {
    const made = make("canvas", { width: 256, height: 256 });
    const c = made.getContext("2d");
    const turn = Math.random();
    const sky = c.createLinearGradient(0, 0, 0, 256);
    sky.addColorStop(0, `hsl(${200 + 40 * turn} 60% 35%)`); sky.addColorStop(1, `hsl(${30 + 40 * turn} 80% 75%)`);
    c.fillStyle = sky; c.fillRect(0, 0, 256, 256);
    c.fillStyle = "#ffe9a8"; c.beginPath(); c.arc(60 + 130 * turn, 90, 34, 0, 7); c.fill();
    c.fillStyle = "#26402f"; c.beginPath(); c.moveTo(0, 210); c.quadraticCurveTo(90, 120 + 40 * turn, 150, 190); c.quadraticCurveTo(200, 150, 256, 200); c.lineTo(256, 256); c.lineTo(0, 256); c.fill();
    take(made.toDataURL("image/png"), made);
  };
  const random = () => { hidden.forEach((line) => line.forEach((_, n) => { line[n] = Number(Math.random() < 0.5); })); draw(); fill(); };
  const none = () => { hidden.forEach((line) => line.fill(0)); draw(); fill(); };
  if (fills) for (let row = Math.floor(grid[0] * 0.35); row < Math.ceil(grid[0] * 0.65); row++) for (let column = Math.floor(grid[1] * 0.35); column < Math.ceil(grid[1] * 0.65); column++) hidden[row][column] = 1;
  if (draws) scene();
  else answer.replaceChildren(make("p", { className: "quiet" }, `Choose a picture of yours: the model reads ${channels} channels of ${depth}.`));
  const buttons = make("div", { className: "row" }, ...field("A picture of yours", chooser), ...(draws ? [make("button", { type: "button", onclick: scene }, "Draw another")] : []),
    ...(fills ? [make("button", { type: "button", onclick: random }, "Hide half at random"), make("button", { type: "button", onclick: none }, "Show all"), make("button", { type: "button", className: "main", onclick: fill }, "Fill")] : []));
  return [drops(section(fills ? "Paint over what is to be hidden" : "A picture", buttons, make("div", { className: "paint" }, canvas)), open), section(fills ? "Predicted back" : "Classes", answer)];
}
