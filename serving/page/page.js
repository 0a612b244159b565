// The search page: gestures, searches through the API, answers, the view of an item, and verdicts.
const find = (selector) => document.querySelector(selector);
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const shown = (element, yes) => { element.hidden = !yes; };
const about = document.body.dataset, COLUMNS = JSON.parse(about.columns);
const picture = find("#picture"), frame = find("#photo"), ours = find("#ours");
const path = (kind, id) => `v1/${kind}/${encodeURIComponent(id)}`;
const REVIEWED = 6; // items beyond the threshold that are shown
const UNREACHED = { title: "The server does not answer", text: "Check the connection, then try again." };

async function call(address, options) {
  const answer = await fetch(address, options);
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(told.title ?? `The server answered ${answer.status}`), { detail: told.detail ?? "" });
  return told;
}
const post = (address, body) => call(address, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

// --- photos: choose, paste or drop anywhere, camera, example. Large ones and other formats are sent as JPEG
const SENT = ["image/jpeg", "image/png", "image/webp"], LONGEST = 2048; // pixels, about twice what a model needs of a part
let photo = null; // the one that is searched: blob, or name of an example; url

async function converted(file) {
  try {
    const opened = await createImageBitmap(file), scale = Math.min(1, LONGEST / Math.max(opened.width, opened.height));
    if (scale === 1 && SENT.includes(file.type)) return file;
    const [width, height] = [opened.width, opened.height].map((side) => Math.max(1, Math.round(scale * side)));
    const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d");
    Object.assign(context, { fillStyle: "white", imageSmoothingQuality: "high" });
    context.fillRect(0, 0, width, height); // behind transparent pixels
    context.drawImage(opened, 0, 0, width, height);
    return await canvas.convertToBlob({ type: "image/jpeg", quality: 0.95 });
  } catch { return file; } // the search says why it cannot be used
}

async function take(file) {
  if (!file) return;
  const mine = begin("Looking…");
  const blob = await converted(file);
  if (mine.signal.aborted) return;
  setPhoto({ blob, url: URL.createObjectURL(blob) });
  search();
}

function setPhoto(next) {
  if (photo?.blob) URL.revokeObjectURL(photo.url);
  photo = next;
  part = null;
  about.state = next ? "photo" : "empty";
  shown(picture, next);
  shown(find("#drop"), !next);
  for (const id of ["#clear", "#another-photo"]) shown(find(id), next);
  for (const id of ["#parts", "#hint", "#whole"]) shown(find(id), false);
  if (next) picture.src = next.url; else picture.removeAttribute("src");
}
picture.addEventListener("load", () => { for (const id of ["#parts", "#hint"]) shown(find(id), true); draw(); });
picture.addEventListener("error", () => { shown(picture, false); }); // this browser cannot show it

const input = find("#file");
for (const each of [input, find("#camera input")]) each.addEventListener("change", () => { take(each.files[0]); each.value = ""; });
find("#another-photo").onclick = () => input.click();
find("#clear").onclick = () => { asked?.abort(); setPhoto(null); say("", "Show us a photo of one thing", "You get the item that it shows, or hear that we do not have it."); input.focus(); };
document.addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files ?? [])].find((each) => each.type.startsWith("image/"));
  if (file) { event.preventDefault(); take(file); }
});
for (const kind of ["dragover", "drop"]) {
  document.addEventListener(kind, (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    if (kind === "drop") take(event.dataTransfer.files[0]);
  });
}
for (const button of document.querySelectorAll("[data-example]")) {
  button.onclick = () => { setPhoto({ example: button.dataset.example, url: button.querySelector("img").src }); search(); };
}

// --- searches: the newest ends those before it
let asked = null, part = null; // part: sides of a box, in shares of the photo

function begin(text) {
  asked?.abort();
  asked = new AbortController();
  say("busy", text, "");
  return asked;
}

async function run(text, work, show) {
  const mine = begin(text);
  try {
    const answer = await work(mine.signal);
    if (!mine.signal.aborted) show(answer);
  } catch (error) {
    if (mine.signal.aborted) return;
    const { title, text: why } = error instanceof TypeError ? UNREACHED : { title: "This cannot be searched", text: sentences(error.message, error.detail) };
    say("refused", title, why);
    shown(find("#parts"), false);
    find("#verdicts").append(make("button", { type: "button", textContent: "Try again", onclick: () => run(text, work, show) }));
  }
}
const sentences = (...parts) => parts.filter(Boolean).map((each) => each[0].toUpperCase() + each.slice(1).replace(/\.?$/, ".")).join(" ");

const pixels = (sides) => sides.map((side, place) => (side * [picture.naturalWidth, picture.naturalHeight][place % 2]).toFixed(3)).join(",");
function ask(kind, options, signal) {
  const { example, blob } = photo, query = new URLSearchParams(options);
  const address = example ? `page/examples/${example}` : `v1/search${kind}`;
  if (!example) for (const name of ["name", ...COLUMNS.map(([column]) => column)]) query.append("fields", name);
  return call(`${address}?${query}`, { method: "POST", signal, body: blob, headers: blob ? { "content-type": blob.type || "image/jpeg" } : {} });
}
function search(sides = null) {
  part = sides;
  shown(find("#whole"), sides);
  const options = { top_k: 12, ...(photo.blob && { review: 1, explain: true }), ...(sides && { bbox: pixels(sides) }) };
  run("Looking…", (signal) => ask("", options, signal), showAnswer);
  draw();
}
find("#whole").onclick = () => search();
find("#parts").onclick = () => {
  part = null;
  shown(find("#whole"), false);
  run(`Looking at ${about.windows} parts of the photo…`, (signal) => ask("/boxes", { top_k: 1, find: "windows" }, signal), showParts);
  draw();
};
find("#words")?.addEventListener("submit", (event) => {
  event.preventDefault();
  setPhoto(null);
  const text = find("#words input").value, fields = ["name", ...COLUMNS.map(([column]) => column)].map((name) => ["fields", name]);
  run("Looking…", (signal) => call(`v1/search?${new URLSearchParams([["text", text], ["top_k", 12], ["review", 1], ...fields])}`, { method: "POST", signal }), (answer) => { about.state = "words"; showAnswer(answer); });
});

// --- answers
const titleOf = (match) => (typeof match.metadata.name === "string" && match.metadata.name.trim() ? match.metadata.name : match.item_id);
const NO_THRESHOLD = "This search cannot tell yet whether an item is in the catalogue: it shows the closest ones, right or not.";
const NOT_SURE = "We are not sure. Please compare the two pictures.";
const SAYS = {
  twins: "The catalogue may have this item twice. Please check both.",
  shared_photo: "These items have the same photo in the catalogue. Please check which one it is.",
  damaged_photo: "The photo is damaged: parts of it are missing. Please take it again.",
  gallery_empty: "The catalogue holds no photos yet.",
};

function say(kind, title, text) {
  find("#said").dataset.kind = kind;
  find("#title").textContent = title;
  find("#text").textContent = text;
  ours.replaceChildren();
  ours.className = "";
  find("#verdicts").replaceChildren();
  find("#more").replaceChildren();
  for (const box of frame.querySelectorAll(".found")) box.remove();
  document.body.ariaBusy = kind === "busy";
}

const values = (metadata) => COLUMNS.filter(([column]) => metadata[column] != null && metadata[column] !== "").map(([column, unit]) => `${column} ${metadata[column]}${unit ? ` ${unit}` : ""}`);
// a picture of an item that opens it, with its name, id and the columns of the shop
function card(match, { number, places, pick, brief } = {}) {
  const title = titleOf(match);
  const open = make("button", { type: "button", className: "open", ariaLabel: `Show ${title}` }, make("img", { src: path("thumbnails", match.photo_id), alt: "" }));
  open.onclick = () => view(match.item_id, match.photo_id, { p: match.p_value, places });
  const names = make("figcaption", {}, ...(number ? [make("span", { className: "number", textContent: number })] : []), make("b", { textContent: title }));
  for (const text of brief ? [] : [...(title === match.item_id ? [] : [match.item_id]), ...values(match.metadata)]) names.append(make("span", { textContent: text }));
  const figure = make("figure", { className: "card" }, open, names);
  if (pick) figure.append(pick);
  return figure;
}
const grid = (...cards) => make("div", { className: "cards" }, ...cards);

function showAnswer(result) {
  const { matches, decision, reason, look } = result, judged = judging(result);
  const review = matches.length || !result.ranked.length ? result.review.slice(0, REVIEWED) : result.ranked;
  const others = matches.length || review.length || !result.nearest ? review : [result.nearest];
  const framed = ["block", "region"].includes(look) && result.box && ["match", "perhaps"].includes(decision);
  const aside = framed ? " This is about the framed part of your photo." : "", places = result.explanation?.places ?? [];
  const pick = (match) => judged.pick(match);
  const small = (list, brief = true) => grid(...list.map((match) => card(match, { pick: pick(match), brief })));
  if (decision === "match") {
    const [first, ...rest] = matches;
    const several = rest.length ? `${matches.length} items are close enough; this is the closest. ` : "";
    say("match", `This is ${titleOf(first)}`, `${several}We are sure.${aside}`);
    ours.append(card(first, { places }));
    judged.offer("Is this right?", { verdict: "right" });
    if (rest.length) find("#more").append(make("h3", { textContent: "Also close enough" }), small(rest));
    if (others.length) find("#more").append(make("details", {}, make("summary", { textContent: `${others.length} more, less close` }), small(others)));
  } else if (decision === "perhaps") {
    const several = ["twins", "shared_photo"].includes(reason) && others.length > 1, [first, ...rest] = others;
    say("perhaps", several ? `Is it ${titleOf(first)} or ${titleOf(rest[0])}?` : `Is it ${titleOf(first)}?`, `${SAYS[reason] ?? NOT_SURE}${aside}`);
    if (several) { ours.className = "several"; ours.append(small(others, false)); } else ours.append(card(first, { places }));
    judged.offer("", several ? null : { verdict: "wrong", item_id: first.item_id });
    if (!several && rest.length) find("#more").append(make("h3", { textContent: "Or one of these?" }), small(rest));
  } else {
    const ranked = decision === "ranked", damaged = reason === "damaged_photo", none = ranked ? "The closest items" : "We do not have this";
    const text = SAYS[reason] ?? (reason === "filtered_out" ? "No photo passes the filter." : ranked ? NO_THRESHOLD : others.length > 1 ? "These come closest, and none is close enough." : "This comes closest, and is not close enough.");
    say("none", damaged ? "This photo is damaged" : none, text);
    if (others.length) { ours.className = "several"; ours.append(small(others.slice(0, REVIEWED))); judged.offer("", ranked ? null : { verdict: "unknown", text: "You are right" }); }
  }
  if (framed) drawFound([{ box: result.box }], false);
  if (places.length) find("#more").prepend(make("p", { className: "small", textContent: `${places.length} details of your photo are in our picture, too. Open it to see where.` }));
  scrollToAnswer();
}

// parts that overlap no nearer one: without a threshold, a part of a thing is as good as its neighbours
function apart(parts) {
  const kept = [], nearest = (each) => (each.matches[0] ?? each.review[0] ?? each.nearest).distance;
  for (const each of parts.sort((one, other) => nearest(one) - nearest(other))) {
    const [left, upper, right, lower] = each.box;
    if (!kept.some(({ box }) => left < box[2] && box[0] < right && upper < box[3] && box[1] < lower)) kept.push(each);
  }
  return kept;
}

function showParts({ answers }) {
  const results = answers.filter((each) => each.nearest), first = (each) => each.matches[0] ?? each.review[0] ?? each.nearest;
  const named = new Map();
  for (const kind of ["match", "perhaps", "ranked"]) for (const each of results) if (each.decision === kind && !named.has(first(each).item_id)) named.set(first(each).item_id, each);
  const ranked = [...named.values()].some((each) => each.decision === "ranked"), found = ranked ? apart([...named.values()]) : [...named.values()];
  const chosen = found.slice(0, REVIEWED), sure = chosen.filter((each) => each.decision === "match");
  const list = (some) => some.map((each) => titleOf(first(each))).join(" and ");
  const hint = "Choose a box on the photo to search with it alone.";
  if (sure.length) say("match", `This shows ${list(sure)}`, `${chosen.length > sure.length ? "We are not sure about the others. " : "We are sure. "}${hint}`);
  else if (chosen.length) say(ranked ? "none" : "perhaps", ranked ? "The closest items" : `Is it ${list(chosen)}?`, ranked ? `The closest items to parts of the photo, right or not. ${hint}` : `We are not sure. ${hint}`);
  else say("none", "We do not have any of this", "No part of the photo is close enough to an item.");
  ours.className = "several";
  ours.append(grid(...chosen.map((each, place) => card(first(each), { brief: true, number: place + 1, pick: ranked ? null : judging(each).yesNo(each) }))));
  drawFound(chosen);
  scrollToAnswer();
}

function scrollToAnswer() {
  const said = find("#said"), { top, bottom } = said.getBoundingClientRect();
  if (top >= 0 && bottom + 200 <= window.innerHeight) return;
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  said.scrollIntoView({ behavior: still ? "auto" : "smooth", block: "start" });
}

// --- boxes on the photo: what was found, and a part that is dragged; sides are shares of the photo
const LEAST = 0.03; // a smaller box is a click
let from = null;

// where the pixels of a picture are that is fitted into its element
function area(image) {
  const box = image.getBoundingClientRect(), scale = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
  const width = image.naturalWidth * scale, height = image.naturalHeight * scale;
  return { x: box.x + (box.width - width) / 2, y: box.y + (box.height - height) / 2, width, height };
}
function place(element, sides) {
  const drawn = area(picture), { x, y } = frame.getBoundingClientRect();
  Object.assign(element.style, {
    left: `${drawn.x - x + sides[0] * drawn.width}px`, width: `${(sides[2] - sides[0]) * drawn.width}px`,
    top: `${drawn.y - y + sides[1] * drawn.height}px`, height: `${(sides[3] - sides[1]) * drawn.height}px`,
  });
  element.sides = sides;
}
function draw() {
  frame.querySelector(".part")?.remove();
  if (!picture.naturalWidth || picture.hidden) return;
  if (part) { const box = make("div", { className: "box part" }); place(box, part); frame.append(box); }
  for (const box of frame.querySelectorAll(".found")) place(box, box.sides);
}
function drawFound(results, numbered = true) {
  const taken = [], size = ({ box }) => (box ? (box[2] - box[0]) * (box[3] - box[1]) : 0);
  const boxes = results.map((each, number) => ({ ...each, number: number + 1 })).filter((each) => each.box).sort((one, other) => size(other) - size(one)); // small boxes lie above large ones
  for (const { box, number } of boxes) {
    const { naturalWidth: w, naturalHeight: h } = picture, sides = [box[0] / w, box[1] / h, box[2] / w, box[3] / h];
    const button = make("button", { type: "button", className: "box found", ariaLabel: `Search with box ${number}` });
    button.onclick = () => search(sides);
    place(button, sides);
    if (numbered) { // in a corner that is free
      const corners = [[0, 1], [2, 1], [2, 3], [0, 3]].map(([across, down]) => [sides[across], sides[down]]);
      const free = corners.findIndex(([x, y]) => taken.every(([a, b]) => Math.hypot(x - a, y - b) > 0.12));
      taken.push(corners[Math.max(0, free)]);
      button.append(make("span", { className: `number at-${Math.max(0, free)}`, textContent: number }));
    }
    frame.append(button);
  }
}
const shareOf = (event, drawn) => [(event.clientX - drawn.x) / drawn.width, (event.clientY - drawn.y) / drawn.height].map((side) => Math.min(1, Math.max(0, side)));
frame.addEventListener("pointerdown", (event) => {
  if (event.button || picture.hidden || !picture.naturalWidth || !(event.target === picture || event.target.closest(".found"))) return;
  from = shareOf(event, area(picture));
  event.preventDefault();
});
document.addEventListener("pointermove", (event) => {
  if (!from) return;
  const [x, y] = shareOf(event, area(picture));
  if (Math.abs(x - from[0]) < LEAST || Math.abs(y - from[1]) < LEAST) return;
  part = [Math.min(from[0], x), Math.min(from[1], y), Math.max(from[0], x), Math.max(from[1], y)];
  dragged = true;
  draw();
});
let dragged = false;
document.addEventListener("pointerup", () => { if (from && dragged) search(part); from = null; dragged = false; });
document.addEventListener("pointercancel", () => { if (dragged) part = null; from = null; dragged = false; draw(); });
new ResizeObserver(draw).observe(frame);

// --- verdicts on an answer: one, which can be undone
function judging(result) {
  const bar = find("#verdicts"), id = result.request_id, may = "judges" in about && id && photo; // words are not kept
  const whole = part ? null : photo?.blob; // a part of a photo is no photo of an item
  const note = make("p", { role: "status" });
  async function send(holder, verdict, item_id = "", fresh = "") {
    const before = [...holder.childNodes], told = holder === bar ? note : make("p", { role: "status" }), question = told.textContent;
    holder.replaceChildren(told);
    for (const pick of document.querySelectorAll(".pick")) shown(pick, false);
    const restore = (text) => { holder.replaceChildren(...before); for (const pick of document.querySelectorAll(".pick")) shown(pick, true); told.textContent = text; if (holder !== bar && text) holder.append(told); };
    const undos = [];
    try {
      await post("v1/feedback", { request_id: id, verdict, item_id });
      undos.push(() => call(`v1/feedback/${encodeURIComponent(id)}`, { method: "DELETE" }));
      if (fresh) {
        const address = `${path("photos", `answer-${id}`)}?${new URLSearchParams({ item_id: fresh })}`;
        const { etag } = await call(address, { method: "PUT", body: whole, headers: { "content-type": whole.type || "image/jpeg", "if-none-match": "*" } });
        undos.push(() => call(path("photos", `answer-${id}`), { method: "DELETE", headers: { "if-match": etag } }));
      }
    } catch (error) {
      for (const undo of undos) await undo().catch(() => {});
      restore(sentences(error.message, error.detail));
      return;
    }
    const undo = make("button", { type: "button", textContent: "Undo", className: "plain" });
    undo.onclick = async () => {
      try { for (; undos.length; undos.pop()) await undos.at(-1)(); restore(question); } catch (error) { told.textContent = sentences(error.message, error.detail); }
    };
    told.textContent = fresh ? `${fresh} is a new item now. ` : "Saved, thank you. ";
    holder.append(undo);
    undo.focus({ preventScroll: true });
  }
  const button = (text, work, className = "") => make("button", { type: "button", textContent: text, className, onclick: work });
  return {
    pick: (match) => (may ? Object.assign(button("It is this one", () => send(bar, "wrong", match.item_id), "pick plain"), { ariaLabel: `It is this one: ${titleOf(match)}` }) : null),
    yesNo(each) {
      if (!may) return null;
      const named = each.matches[0] ?? each.review[0], holder = make("div", { className: "yes-no" });
      holder.append(button("Yes", () => send(holder, each.matches.length ? "right" : "wrong", each.matches.length ? "" : named.item_id)), button("No", () => send(holder, "wrong")));
      for (const each of holder.children) each.ariaLabel = `${each.textContent}, ${titleOf(named)}`;
      return holder;
    },
    offer(question, yes) {
      if (!may) return;
      note.textContent = question;
      bar.append(note);
      if (yes) bar.append(button(yes.text ?? "Yes", () => send(bar, yes.verdict, yes.item_id), "yes"));
      const another = button("It is another item", () => { another.replaceWith(chooser((item) => send(bar, "wrong", item), whole && "writes" in about ? (item) => send(bar, "unknown", "", item) : null)); find("#another input").focus(); });
      bar.append(another);
      if (yes?.verdict !== "unknown") bar.append(button("You do not have it", () => send(bar, "unknown")));
    },
  };
}

// a field that offers items by a part of their name or id, with pictures
const known = new Map(); // item by id
const itemOf = (id) => { if (!known.has(id)) known.set(id, call(path("items", id)).catch(() => { known.delete(id); return null; })); return known.get(id); };
function chooser(choose, create) {
  const field = make("input", { type: "search", placeholder: "Name or id", maxLength: 200, autocomplete: "off", role: "combobox", ariaExpanded: "false", ariaAutoComplete: "list" });
  const list = make("ul", { id: "offered", role: "listbox", ariaLabel: "Items" });
  field.setAttribute("aria-controls", "offered");
  const unknown = make("button", { type: "button", textContent: "I don’t know which", className: "plain", onclick: () => choose("") });
  let typed = 0, marked = -1;
  const mark = (next) => {
    marked = next;
    for (const [place, option] of [...list.children].entries()) option.setAttribute("aria-selected", String(place === marked));
    const option = list.children[marked];
    if (option) { field.setAttribute("aria-activedescendant", option.id); option.scrollIntoView({ block: "nearest" }); } else field.removeAttribute("aria-activedescendant");
  };
  const option = (parts, work) => {
    const made = make("li", { id: `offered-${list.children.length}`, role: "option" }, ...parts);
    made.addEventListener("click", work);
    list.append(made);
  };
  field.oninput = async () => {
    const mine = ++typed, text = field.value.trim();
    await new Promise((done) => setTimeout(done, 150));
    if (mine !== typed) return;
    const found = text ? (await call(`v1/items?${new URLSearchParams({ find: text, limit: 8 })}`).catch(() => ({ items: [] }))).items : [];
    const items = await Promise.all(found.map(itemOf));
    if (mine !== typed) return;
    list.replaceChildren();
    for (const item of items.filter(Boolean)) {
      const [first] = item.photos, name = titleOf({ ...first, item_id: item.item_id });
      option([make("img", { src: path("thumbnails", first.photo_id), alt: "" }), make("b", { textContent: name }), make("span", { textContent: name === item.item_id ? "" : item.item_id })], () => choose(item.item_id));
    }
    if (text && create && !found.includes(text)) option([make("b", { textContent: `New item “${text}”` })], () => create(text));
    if (text && !list.children.length) list.append(make("li", { className: "small", textContent: "No item has this name or id." }));
    field.ariaExpanded = String(Boolean(list.children.length));
    mark(-1);
  };
  field.onkeydown = (event) => {
    const options = list.querySelectorAll("[role=option]").length;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); if (options) mark((marked + (event.key === "ArrowDown" ? 1 : -1) + options + (marked < 0 && event.key === "ArrowUp" ? 1 : 0)) % options); }
    if (event.key === "Enter" && list.children[marked]) { event.preventDefault(); list.children[marked].click(); }
    if (event.key === "Escape") { list.replaceChildren(); field.ariaExpanded = "false"; }
  };
  return make("div", { id: "another" }, make("label", {}, "Which item is it? ", field), list, unknown);
}

// --- an item: all its photos, beside the photo that was sent
const MOST_PLACES = 40; // circles on a picture
// circles where details of both pictures agree, of one colour for each pair
function circle(figure, places) {
  const image = figure.querySelector("img"), space = "http://www.w3.org/2000/svg";
  image.decode().then(() => {
    const { naturalWidth: width, naturalHeight: height } = image, drawing = document.createElementNS(space, "svg");
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.setAttribute("aria-hidden", "true");
    for (const [number, [x, y]] of places.entries()) {
      const made = document.createElementNS(space, "circle");
      const shape = { cx: x * width, cy: y * height, r: Math.max(width, height) / 60, stroke: `hsl(${(number * 137) % 360} 90% 50%)` };
      for (const [key, value] of Object.entries(shape)) made.setAttribute(key, value);
      drawing.append(made);
    }
    figure.append(drawing);
  }, () => {});
}
// "1 of 26", "3 of 10"
const ofPhotos = (share) => (share >= 0.095 ? `${Math.round(10 * share)} of 10` : share < 0.0005 ? "fewer than 1 of 1,000" : share >= 0.0095 ? `1 of ${Math.round(1 / share)}` : `${Math.round(1000 * share)} of 1,000`);
async function view(id, photoId, { p, places = [] } = {}) {
  const item = await call(path("items", id)).catch(() => null);
  if (!item) { alert(`The item ${id} cannot be shown. It may have been removed.`); return; }
  const { photos } = item, own = photos.find((each) => each.photo_id === photoId) ?? photos[0], name = titleOf({ ...own, item_id: id });
  const image = (each) => make("img", { src: path("thumbnails", each.photo_id), alt: "" });
  const large = make("figure", {}, image(own), make("figcaption", { textContent: "Catalogue" })), pair = make("div", { className: "both" });
  if (photo && !picture.hidden) pair.append(make("figure", {}, make("img", { src: photo.url, alt: "" }), make("figcaption", { textContent: "Your photo" })));
  pair.append(large);
  if (places.length && pair.children.length > 1) {
    const some = places.slice(0, MOST_PLACES);
    circle(pair.firstChild, some);
    circle(large, some.map((each) => each.slice(2)));
  }
  const rest = make("div", { className: "photos" });
  for (const each of photos.length > 1 ? photos : []) {
    const button = make("button", { type: "button", ariaLabel: `Compare with ${each.photo_id}` }, image(each));
    button.onclick = () => { large.querySelector("img").replaceWith(image(each)); for (const drawing of pair.querySelectorAll("svg")) drawing.remove(); };
    rest.append(button);
  }
  const facts = make("dl"), closeness = typeof p === "number" ? { "how close": `${ofPhotos(p)} photos of things we do not have ${ofPhotos(p).startsWith("1 of ") ? "comes" : "come"} this close` } : {};
  const units = new Map(COLUMNS);
  for (const [key, value] of Object.entries({ id, ...own.metadata, ...closeness })) facts.append(make("dt", { textContent: key }), make("dd", { textContent: units.get(key) ? `${value} ${units.get(key)}` : String(value) }));
  const link = make("button", { type: "button", textContent: "Copy a link to this item" }), note = make("span", { className: "small", textContent: " It shows the item, not your photo." });
  link.onclick = async () => {
    const address = new URL(location.href);
    address.hash = new URLSearchParams({ item: id });
    await navigator.clipboard.writeText(address.href).then(() => { note.textContent = " Copied."; }, () => { note.textContent = ` ${address.href}`; });
  };
  const close = make("button", { type: "button", className: "close", ariaLabel: "Close", textContent: "×" });
  const dialog = make("dialog", { id: "item", ariaLabel: name }, close, make("h2", { textContent: name }), pair, rest, facts, make("p", {}, link, note));
  close.onclick = () => dialog.close();
  dialog.onclick = (event) => { if (event.target === dialog) dialog.close(); };
  dialog.onclose = () => dialog.remove();
  document.body.append(dialog);
  dialog.showModal();
}
const openLinked = () => { const id = new URLSearchParams(location.hash.slice(1)).get("item"); if (id) view(id); };
window.addEventListener("hashchange", openLinked);
openLinked();
