// The page /manage: a view of each section, made of calls of the API. Changes can be undone until the page is left.
const find = (selector) => document.querySelector(selector);
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const main = find("#main");
const PAGE = 24, APART = "retrieval-kept-apart";
const path = (kind, id) => `v1/${kind}/${encodeURIComponent(id)}`;
const titleOf = (item) => item.photos.map((photo) => photo.metadata.name).find((name) => typeof name === "string" && name.trim()) ?? item.item_id;
const picture = (photo) => make("img", { src: path("thumbnails", photo), alt: "", loading: "lazy" });
const counted = (number, one) => `${number.toLocaleString("en")} ${one}${number === 1 ? "" : "s"}`;

// whole numbers above 2**53 keep all of their digits
const parse = (text) => JSON.parse(text, (_, value, { source } = {}) => (Number.isInteger(value) && !Number.isSafeInteger(value) && JSON.rawJSON && source ? JSON.rawJSON(source) : value));
async function call(method, address, body, headers = body === undefined ? {} : { "content-type": "application/json" }) {
  const answer = await fetch(address, { method, body, headers });
  const told = await answer.text().then(parse).catch(() => ({}));
  const text = [told.title, told.detail, told.remedy].filter(Boolean).join(". ") || `The server answered ${answer.status}.`;
  if (!answer.ok) throw Object.assign(new Error(text), { refused: answer.status < 500 });
  return told;
}
const get = (address) => call("GET", address);
const getItem = (id) => get(path("items", id));

// --- changes and their undoing
const undoing = [];
function tell(text, undo) {
  find("#wrong").hidden = true;
  find("#done").hidden = !text;
  find("#done span").textContent = text;
  if (undo) undoing.push(undo);
  find("#undo").hidden = !undoing.length;
}
function fail(error) {
  find("#wrong").textContent = error.message;
  find("#wrong").hidden = false;
}
// runs a change once, with its buttons off; then the view is made anew
async function change(button, work) {
  if (button) button.disabled = true;
  try { await work(); await show(); } catch (error) { fail(error); } finally { if (button) button.disabled = false; }
}
find("#undo").onclick = (event) => change(event.target, async () => {
  const undo = undoing.pop();
  try { tell(await undo()); } catch (error) { if (!error.refused) undoing.push(undo); throw error; }  // a busy server may do it later
});

// gives photos other items or metadata; the server refuses it if somebody else has changed one of them since
async function set(photos, next) {
  const sync = (rows) => call("POST", "v1/admin/sync", JSON.stringify({ photos: rows }));
  const { etags } = await sync(photos.map((photo) => ({ ...photo, ...next(photo) })));
  return async () => { await sync(photos.map((photo) => ({ ...photo, etag: etags[photo.photo_id] }))); return "Undone."; };
}
async function add(file, photo, item) {
  const headers = { "content-type": file.type || "image/jpeg", "if-none-match": "*" };
  const { etag } = await call("PUT", `${path("photos", photo)}?${new URLSearchParams({ item_id: item })}`, file, headers);
  return async () => { await call("DELETE", path("photos", photo), undefined, { "if-match": etag }); return "Undone."; };
}
// adds photos in turn; after a failure, those before it are in the catalogue and can be undone
async function addAll(additions, where = "") {
  const undos = [];
  try {
    for (const addition of additions) undos.push(await add(...addition));
  } finally {
    if (undos.length) tell(`Added ${counted(undos.length, "photo")}${where}.`, async () => { for (; undos.length; undos.pop()) await undos.at(-1)(); return "Undone."; });
  }
}

// --- parts of views
function form(text, fields, work) {
  const button = make("button", { textContent: text });
  const made = make("form", {}, ...fields, button);
  made.onsubmit = (event) => { event.preventDefault(); change(button, () => work(made.elements)); };
  return made;
}
const field = (text, name, properties = {}) => make("label", { textContent: text }, make("input", { name, required: true, maxLength: 200, ...properties }));
function button(text, work, className = "") {
  const made = make("button", { type: "button", textContent: text, className });
  made.onclick = () => change(made, work);
  return made;
}
const itemLink = (id, text = id) => make("a", { href: `#item=${encodeURIComponent(id)}`, textContent: text });

// --- items
async function showItems(query) {
  const text = query.get("find") ?? "", after = query.get("after") ?? "";
  const found = await get(`v1/items?${new URLSearchParams({ find: text, after, limit: PAGE })}`);
  const search = make("form", {}, field("Name, id or any other text of the catalogue", "find", { value: text, required: false, type: "search" }), make("button", { textContent: "Search" }));
  search.onsubmit = (event) => { event.preventDefault(); location.hash = `items&${new URLSearchParams({ find: search.elements.find.value })}`; };
  const cards = await Promise.all(found.items.map(async (id) => {
    const item = await getItem(id).catch(() => null);
    if (!item) return "";
    const open = itemLink(id, ""), name = titleOf(item);
    Object.assign(open, { className: "picture", tabIndex: -1, ariaHidden: true }); // the name is the link for keyboards
    open.append(picture(item.photos[0].photo_id));
    return make("li", {}, open, make("b", {}, itemLink(id, name)), make("span", { textContent: name === id ? "" : id }), make("span", { textContent: counted(item.photos.length, "photo") }));
  }));
  const parts = [search, make("ul", { className: "cards" }, ...cards)];
  if (!found.items.length) parts.push(make("p", { textContent: text ? "No item has this text." : "There are no more items." }));
  if (found.next !== null) parts.push(make("a", { href: `#items&${new URLSearchParams({ find: text, after: found.next })}`, textContent: "More items" }));
  parts.push(make("h2", { textContent: "New item" }), form("Add", [field("Id of the item", "newItem"), field("Photos", "files", { type: "file", accept: "image/*", multiple: true })], (given) => addPhotos(given.newItem.value.trim(), given.files.files)));
  return parts;
}
const addPhotos = (item, files) => addAll([...files].map((file) => [file, `${item}/${file.name}`, item]), ` to ${item}`);

async function showItem(query) {
  const id = query.get("item"), item = await getItem(id);
  const move = (photos, to, text) => set(photos, () => ({ item_id: to })).then((undo) => tell(text, undo));
  const cards = item.photos.map((photo) => {
    const other = make("input", { ariaLabel: `Other item for ${photo.photo_id}`, placeholder: "Other item", maxLength: 200 });
    return make("li", {}, picture(photo.photo_id), make("span", { textContent: photo.photo_id }), other,
      button("Move", () => {
        if (!other.value.trim()) throw new Error("Write the id of the other item first.");
        return move([photo], other.value.trim(), `Moved ${photo.photo_id} to ${other.value.trim()}.`);
      }),
      button("Remove", async () => {
        if (!confirm(`Remove the photo ${photo.photo_id}? This cannot be undone.`)) return;
        await call("DELETE", path("photos", photo.photo_id));
        tell(`Removed ${photo.photo_id}.`);
        if (item.photos.length === 1) location.hash = "items";
      }, "bad"));
  });
  const facts = make("dl");
  for (const [name, value] of Object.entries(item.photos[0].metadata)) facts.append(make("dt", { className: "soft", textContent: name }), make("dd", { textContent: value?.rawJSON ?? String(value) }));
  return [
    make("h2", { textContent: titleOf(item) }), make("p", { className: "soft", textContent: `${id}, ${counted(item.photos.length, "photo")}` }), facts,
    make("ul", { className: "cards" }, ...cards),
    form("Add photos", [field("Photos", "files", { type: "file", accept: "image/*", multiple: true })], (given) => addPhotos(id, given.files.files)),
    form("Change the id", [field("New id; that of another item merges the two", "to", { value: id })], async (given) => {
      const to = given.to.value.trim();
      await move(item.photos, to, `${id} is ${to} now.`);
      location.hash = `item=${encodeURIComponent(to)}`;
    }),
    form("Change the name", [field("Name", "name", { value: titleOf(item) })], async (given) => {
      const name = given.name.value;
      tell(`The name is ${name} now.`, await set(item.photos, (photo) => ({ metadata: { ...photo.metadata, name } })));
    }),
    button("Remove the item", async () => {
      if (!confirm(`Remove ${id} and its ${counted(item.photos.length, "photo")}? This cannot be undone.`)) return;
      await call("DELETE", path("items", id));
      tell(`Removed ${id}.`);
      location.hash = "items";
    }, "bad"),
  ];
}

// --- look-alikes: pairs are kept apart in this browser only, since nothing else depends on it
function keptApart() {
  try { return new Set(JSON.parse(localStorage.getItem(APART))); } catch { return new Set(); } // not written by this page
}
async function showLookAlikes() {
  const apart = keptApart();
  const nameOf = (pair) => [pair.item_id, pair.other_item_id].sort().join("\n");
  const pairs = (await get("v1/admin/look-alikes")).filter((pair) => !apart.has(nameOf(pair)));
  const merge = async (from, to) => tell(`Merged ${from} into ${to}.`, await set((await getItem(from)).photos, () => ({ item_id: to })));
  const shown = pairs.map((pair) => make("div", { className: "pair" },
    make("div", {}, picture(pair.photo_id), itemLink(pair.item_id)), make("div", {}, picture(pair.other_photo_id), itemLink(pair.other_item_id)),
    make("div", {}, make("p", { textContent: pair.why === "close" ? "A photo of one matches the other." : `Photos: ${pair.why}.` }),
      button(`Merge into ${pair.item_id}`, () => merge(pair.other_item_id, pair.item_id)),
      button(`Merge into ${pair.other_item_id}`, () => merge(pair.item_id, pair.other_item_id)),
      button("Keep apart", () => {
        localStorage.setItem(APART, JSON.stringify([...apart, nameOf(pair)]));
        tell(`${pair.item_id} and ${pair.other_item_id} are not listed again in this browser.`);
      }))));
  const intro = pairs.length ? `${counted(pairs.length, "pair")} of items that are hard to tell apart. Merge those that are one thing.` : "No items are hard to tell apart.";
  return [make("p", { textContent: intro }), ...shown];
}

// --- answers whose photos can be added
async function showAnswers() {
  const asked = await get("v1/admin/answers");
  if (!asked.length) return [make("p", { textContent: "There is nothing to review. Answers are listed here if the search was not sure or somebody judged them, and if the server keeps their photos (retrieval serve --feedback-photos)." })];
  const rightOf = (answer) => (answer.verdict === "unknown" || (answer.verdict === "wrong" && !answer.right_item_id) ? "" : answer.right_item_id || answer.item_id);
  const rows = asked.map((answer) => {
    const chosen = make("input", { type: "checkbox", ariaLabel: "Choose this photo" });
    const item = make("input", { value: rightOf(answer), ariaLabel: "Item", maxLength: 200 });
    const said = answer.verdict ? `Judged ${answer.verdict}.` : `Probably ${answer.item_id}.`;
    const about = make("span", { textContent: said });
    // the photo that is shown is the one that is added: another search may use the same request id meanwhile
    const image = make("img", { alt: "", onload: () => URL.revokeObjectURL(image.src) });
    const photo = fetch(`v1/admin/answers/${encodeURIComponent(answer.request_id)}/photo`).then((got) => (got.ok ? got.blob() : null));
    photo.then((blob) => { if (blob) image.src = URL.createObjectURL(blob); });
    const row = make("li", {}, image, about, item, make("label", { className: "row" }, "Choose", chosen));
    return { answer, chosen, item, photo, row };
  });
  const accept = async () => {
    const taken = rows.filter((row) => row.chosen.checked);
    if (!taken.length) throw new Error("Choose some photos first.");
    if (taken.some((row) => !row.item.value.trim())) throw new Error("Write the item of each chosen photo.");
    const additions = await Promise.all(taken.map(async ({ answer, item, photo }) => [await photo, `answer-${answer.request_id}`, item.value.trim()]));
    const lost = additions.find(([shown]) => !shown);
    if (lost) throw new Error(`The photo ${lost[1]} is no longer kept.`);
    await addAll(additions);
  };
  return [
    make("p", { textContent: "Photos that people searched with. Add those that show an item to it; an id that is new makes a new item." }),
    make("div", { className: "row" }, button("Add the chosen photos to their items", accept)),
    make("ul", { className: "cards" }, ...rows.map((row) => row.row)),
  ];
}

// --- threshold and rates
let measured = null;
async function showRates() {
  const info = await get("v1/info"), percent = (share) => (typeof share === "number" ? `${(100 * share).toFixed(1)} %` : "not measured");
  const row = (name, ...values) => make("tr", {}, make("th", { textContent: name, scope: "row" }), ...values.map((value) => make("td", { textContent: value })));
  const parts = [make("p", { textContent: "Changes of the catalogue change how often the search is right. Measure again after larger ones: every item is left out in turn and searched for. For fewer false matches, set a lower target: retrieval calibrate BUNDLE GALLERY --target-fpir 0.01." }),
    button("Measure again", async () => { measured = await call("POST", "v1/admin/calibrate"); tell("The threshold was measured again."); })];
  const now = { ...info, evidence: { ...info.evidence, fpir_expected: info.in_gallery?.fpir_expected } }; // in this version
  const points = measured ? [measured.before, measured.after] : [now], of = (name) => points.map((point) => percent(point.evidence?.[name]));
  const columns = measured ? ["before", "after"] : [`now (${info.threshold_status})`];
  parts.push(make("table", {}, make("thead", {}, make("tr", {}, ...["", ...columns].map((text) => make("th", { textContent: text, scope: "col" })))), make("tbody", {},
    row("Threshold", ...points.map((point) => (typeof point.threshold === "number" ? point.threshold.toFixed(4) : "none"))),
    row("Unknown items that return a match", ...of("fpir_expected")), row("Catalogue photos that find their item", ...of("tpir")))),
    ...(measured?.told ?? []).map((line) => make("p", { textContent: line })));
  parts.push(make("a", { href: "v1/report", textContent: "The whole report" }));
  return parts;
}

// --- which view
const VIEWS = { items: showItems, item: showItem, "look-alikes": showLookAlikes, answers: showAnswers, rates: showRates };
let number = 0;
async function show() {
  const mine = ++number, hash = location.hash.slice(1) || "items", query = new URLSearchParams(hash), name = hash.split(/[=&]/)[0];
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name === "item" ? "items" : name}`) link.ariaCurrent = "page"; else link.ariaCurrent = null;
  }
  const { gallery } = await get("v1/info");
  find("#facts").textContent = `${counted(gallery.items, "item")}, ${counted(gallery.photos, "photo")}, version ${gallery.version}.`;
  const parts = await (VIEWS[name] ?? showItems)(query);
  if (mine === number) main.replaceChildren(...parts);
}
const open = () => { find("#wrong").hidden = true; main.replaceChildren("Loading…"); show().catch((error) => { main.replaceChildren(); fail(error); }); };
window.addEventListener("hashchange", open);
open();
