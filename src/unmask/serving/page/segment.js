// Pictures to segment: one is dropped, its mask lies over it, and the classes have their colours and shares; of a
// quantity its range, mean and sum.

import { announce, ask, contentOf, drops, field, latest, make, percent, section, warned } from "./shared.js";

export function segment(model) {
  const canvas = make("canvas", { role: "img", "aria-label": "No picture yet." });
  const strength = make("input", { type: "range", min: "0", max: "100", value: "50" });
  const answer = make("div", {}, make("p", { className: "quiet" }, "Drop a picture here, or choose a file."));
  let shown = null; // [the picture, its mask in colours]

  const draw = () => {
    if (!shown) return;
    const [picture, mask] = shown;
    const pen = canvas.getContext("2d");
    [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
    pen.drawImage(picture, 0, 0);
    pen.globalAlpha = strength.value / 100;
    pen.drawImage(mask, 0, 0);
  };
  strength.oninput = draw;

  const image = async (content) => {
    const made = make("img", { src: `data:image/png;base64,${content}` });
    await made.decode();
    return made;
  };
  const take = latest(async (current, file) => {
    const content = await contentOf(file);
    answer.classList.add("busy");
    const sent = ask(`models/${encodeURIComponent(model.name)}/segment`, { images: [content.split(",")[1]], draw: true });
    const found = await sent.finally(() => answer.classList.remove("busy"));
    const row = found.results[0];
    const drawn = await Promise.all([image(row.picture), image(row.drawn)]);
    if (!current()) return;
    shown = drawn;
    draw();
    const quantity = "sum" in row;
    const round = (value) => Number(value.toPrecision(4)).toLocaleString("en");
    const said = quantity
      ? `mean ${round(row.mean)}, sum ${round(row.sum)}; drawn from ${row.drawn_range.map(round).join(" (dark) to ")} (bright)`
      : found.classes.map(({ name }) => `${name} ${percent(row.shares[name])}`).join(", ");
    canvas.setAttribute("aria-label", `${file.name} with its mask: ${said}.`);
    const items = found.classes.map(({ name, colour }) => {
      const swatch = make("span", { className: "swatch", "aria-hidden": "true" });
      swatch.style.background = colour;
      return make("li", {}, swatch, make("span", { className: "name", title: name }, name), make("span", { className: "share" }, percent(row.shares[name])));
    });
    const stem = file.name.replace(/\.[^.]*$/, "");
    const values = found.classes.filter(({ name, value }) => name !== value).map(({ name, value }) => `${value} is ${name}`);
    answer.replaceChildren(
      make("div", { className: "columns" },
        make("div", { className: "masked" }, canvas),
        make("div", {}, ...(quantity ? [] : [make("ul", { className: "classes", "aria-label": "Classes and their shares" }, ...items)]),
          make("div", { className: "row" }, ...field("Mask over picture", strength)),
          make("p", {}, make("a", { href: `data:image/${quantity ? "tiff" : "png"};base64,${row.mask}`, download: `${stem}_mask.${quantity ? "tif" : "png"}` }, "Save the mask")),
          make("p", { className: "quiet" }, `${quantity ? `${said}. ` : ""}${file.name}: ${row.width} x ${row.height} pixels${values.length ? `; in the mask ${values.join(", ")}` : ""}.`))),
      ...warned(found));
    announce(`${quantity ? "" : "Shares of the picture: "}${said}.`);
  });
  const chooser = make("input", { type: "file" });
  chooser.onchange = () => { if (chooser.files.length) take(chooser.files[0]); };
  return drops(section("A picture and its mask", make("div", { className: "row" }, ...field("A picture of yours", chooser)), answer), take);
}
