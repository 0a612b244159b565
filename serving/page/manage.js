// The desk /manage: a view of each section, made of calls of the API, and one Undo for the last change.
const find = (selector) => document.querySelector(selector);
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const main = find("#main"), dialog = find("#dialog");
const PAGE = 30, APART = "retrieval-kept-apart", ROUND = 20, AHEAD = 6; // answers: judged until rates are shown, loaded ahead
const path = (kind, id) => `v1/${kind}/${encodeURIComponent(id)}`;
const titleOf = (item) => item.photos.map((photo) => photo.metadata.name).find((name) => typeof name === "string" && name.trim()) ?? item.item_id;
const picture = (photo) => make("img", { src: path("thumbnails", photo), alt: "", loading: "lazy" });
const counted = (number, one) => `${number.toLocaleString("en")} ${one}${number === 1 ? "" : "s"}`;
const soft = (textContent) => make("p", { className: "soft", textContent });

// whole numbers above 2**53 keep all of their digits
const parse = (text) => JSON.parse(text, (_, value, { source } = {}) => (Number.isInteger(value) && !Number.isSafeInteger(value) && JSON.rawJSON && source ? JSON.rawJSON(source) : value));
async function call(method, address, body, headers = body === undefined ? {} : { "content-type": "application/json" }) {
  const answer = await fetch(address, { method, body, headers });
  const told = await answer.text().then(parse).catch(() => ({}));
  const text = [told.title, told.detail, told.remedy].filter(Boolean).join(". ") || `The server answered ${answer.status}.`;
  if (!answer.ok) throw Object.assign(new Error(text), { refused: answer.status < 500, status: answer.status });
  return told;
}
const get = (address) => call("GET", address);
const post = (address, body) => call("POST", address, body === undefined ? undefined : JSON.stringify(body));
const getItem = (id) => get(path("items", id));
const itemOrNull = (id) => getItem(id).catch((error) => { if (error.status === 404) return null; throw error; });

// --- changes and their undoing: the text beside Undo is the change that it undoes
const undoing = [];
let said = ""; // what is told once the view shows it
function tell(text, undo) {
  if (undo) undoing.push({ text, undo }); else undoing.length = 0;
  said = text;
}
function showSaid() {
  find("#wrong").hidden = true;
  find("#undo").hidden = !undoing.length;
  if (!said) return;
  find("#done").hidden = false;
  find("#done span").textContent = said;
  said = "";
}
function fail(error) {
  find("#wrong").textContent = error.message;
  find("#wrong").hidden = false;
}
// runs a change once, with its button off; then the view is made anew
async function change(button, work) {
  if (button?.disabled) return;
  if (button) button.disabled = true;
  try { if (await work() !== false) await show(); showSaid(); } catch (error) { showSaid(); fail(error); } finally { if (button) button.disabled = false; }
}
const undo = find("#undo");
undo.onclick = () => change(undo, async () => {
  const last = undoing.pop();
  try { await last.undo(); } catch (error) { if (!error.refused) undoing.push(last); throw error; } // a busy server may do it later
  said = undoing.length ? `Undone. Before that: ${undoing.at(-1).text}` : "Undone.";
});

// gives photos other items or metadata; the server refuses it if somebody else has changed one of them since
async function set(photos, next) {
  const sync = (rows) => post("v1/admin/sync", { photos: rows });
  const { etags } = await sync(photos.map((photo) => ({ ...photo, ...next(photo) })));
  return () => sync(photos.map((photo) => ({ ...photo, etag: etags[photo.photo_id] })));
}
const moveTo = (photos, to) => set(photos, () => ({ item_id: to }));
async function remove(photos, text) {
  const { removal } = await post("v1/admin/removed", { photos: photos.map(({ photo_id, etag }) => ({ photo_id, etag })) });
  tell(`Removed ${text}. It can be undone for a day.`, () => post(`v1/admin/removed/${removal}/restore`));
}
async function add(file, photo, item) {
  const headers = { "content-type": file.type || "image/jpeg", "if-none-match": "*" };
  const { etag } = await call("PUT", `${path("photos", photo)}?${new URLSearchParams({ item_id: item })}`, file, headers);
  return () => call("DELETE", path("photos", photo), undefined, { "if-match": etag });
}
// adds photos in turn; after a failure, those before it are in the catalogue and can be undone
async function addAll(additions, where = "") {
  const undos = [];
  try {
    for (const addition of additions) undos.push(await add(...addition));
  } finally {
    if (undos.length) tell(`Added ${counted(undos.length, "photo")}${where}.`, async () => { for (; undos.length; undos.pop()) await undos.at(-1)(); });
  }
}
const addPhotos = (item, files) => addAll([...files].map((file) => [file, `${item}/${file.name}`, item]), ` to ${item}`);

// --- parts of views
function button(text, work, className = "", key = "") {
  const made = make("button", { type: "button", className }, text);
  if (key) { made.append(" ", make("kbd", { textContent: key })); made.dataset.key = key.toLowerCase(); }
  made.onclick = () => change(made, work);
  return made;
}
const open = (id) => { location.hash = id ? `item=${encodeURIComponent(id)}` : "items"; };
const itemLink = (id, ...children) => make("a", { href: `#item=${encodeURIComponent(id)}` }, ...(children.length ? children : [id]));
const row = (...children) => make("div", { className: "row" }, ...children);

// asks a question in the dialog; resolves with what was answered, or null
function ask(title, parts, ok = "") {
  return new Promise((resolve) => {
    const form = make("form", { method: "dialog" }, make("h2", { id: "dialog-title", textContent: title }), ...parts);
    const cancel = make("button", { type: "button", textContent: "Cancel", className: "plain", onclick: () => dialog.close() });
    let answer = null;
    form.answer = (value) => { answer = value; dialog.close(); };
    form.append(row(...(ok ? [make("button", { textContent: ok, className: "main" })] : []), cancel));
    form.onsubmit = (event) => { event.preventDefault(); form.answer(form.elements); };
    dialog.onclose = () => resolve(answer);
    dialog.replaceChildren(form);
    dialog.showModal();
  });
}
// a field for an id, which offers items with their pictures
function itemField(label, value = "") {
  const input = make("input", { name: "to", value, required: true, maxLength: 200, autocomplete: "off", role: "combobox", ariaExpanded: "false", ariaAutoComplete: "list" });
  const list = make("ul", { className: "offers", role: "listbox", ariaLabel: "Items", id: "offers", hidden: true });
  input.setAttribute("aria-controls", "offers");
  let asked = 0, at = -1;
  const mark = (place) => {
    at = list.children.length ? (place + list.children.length) % list.children.length : -1;
    [...list.children].forEach((offer, number) => { offer.ariaSelected = String(number === at); });
    if (at >= 0) { input.setAttribute("aria-activedescendant", list.children[at].id); list.children[at].scrollIntoView({ block: "nearest" }); } else input.removeAttribute("aria-activedescendant");
  };
  const close = () => { list.hidden = true; input.ariaExpanded = "false"; mark(-1); at = -1; input.removeAttribute("aria-activedescendant"); };
  const take = (id) => { input.value = id; close(); };
  input.oninput = async () => {
    const mine = ++asked, text = input.value.trim();
    const ids = text ? (await get(`v1/items?${new URLSearchParams({ find: text, limit: 6 })}`)).items : [];
    const items = (await Promise.all(ids.map(itemOrNull))).filter(Boolean);
    if (mine !== asked) return;
    list.replaceChildren(...items.map((item, number) => make("li", { role: "option", id: `offer-${number}`, onmousedown: (event) => { event.preventDefault(); take(item.item_id); } },
      picture(item.photos[0].photo_id), make("b", { textContent: titleOf(item) }), make("span", { textContent: item.item_id }))));
    list.hidden = !items.length;
    input.ariaExpanded = String(!list.hidden);
    at = -1;
  };
  input.onkeydown = (event) => {
    if (list.hidden) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") mark(event.key === "ArrowDown" ? at + 1 : Math.max(at, 0) - 1);
    else if (event.key === "Enter" && at >= 0) take(items_of(list)[at]);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  };
  return make("div", { className: "picker" }, make("label", { textContent: label }, input), list);
}
const items_of = (list) => [...list.children].map((offer) => offer.querySelector("span").textContent);
// asks with both pictures whether two items are one; resolves with the id that is kept, or null
async function askMerge(one, other) {
  const keep = (item) => make("button", { type: "button", className: "choice", onclick: () => dialog.firstChild.answer(item.item_id) },
    picture(item.photos[0].photo_id), make("b", { textContent: `Keep ${item.item_id}` }), make("span", { textContent: `${titleOf(item)}, ${counted(item.photos.length, "photo")}` }));
  return ask("Are these one thing?", [soft("All photos of both get the id that you choose."), make("div", { className: "two" }, keep(one), keep(other))]);
}
async function merge(one, other) {
  const kept = await askMerge(one, other);
  if (!kept) return null;
  const gone = kept === one.item_id ? other : one;
  tell(`Merged ${gone.item_id} into ${kept}.`, await moveTo(gone.photos, kept));
  return kept;
}

// --- items: the list is left, the item right
const search = make("input", { type: "search", ariaLabel: "Find items", placeholder: "Find an item", maxLength: 200 });
const list = make("ul", { className: "list" }), more = button("More items", () => { shown += PAGE; return fill(); }, "plain");
const left = make("section", { className: "left", ariaLabel: "Items" }, row(search, button("New item", newItem)), list, more);
let shown = PAGE, searched = 0;
search.oninput = () => { shown = PAGE; fill().catch(fail); };
left.onkeydown = (event) => {
  const links = [...list.querySelectorAll("a")], at = links.indexOf(document.activeElement);
  if (event.key === "Enter" && event.target === search) links[0]?.click();
  else if (event.key === "ArrowDown") (links[at + 1] ?? links.at(-1))?.focus();
  else if (event.key === "ArrowUp" && at >= 0) (links[at - 1] ?? search).focus();
  else return;
  event.preventDefault();
};
const opened = () => (location.hash.startsWith("#item=") ? new URLSearchParams(location.hash.slice(1)).get("item") : null);
function listed(item) {
  const name = titleOf(item), id = item.item_id;
  return make("li", {}, itemLink(id, picture(item.photos[0].photo_id), make("span", {}, make("b", { textContent: name }), make("span", { className: "soft", textContent: name === id ? "" : id })),
    make("span", { className: "soft", textContent: item.photos.length, title: counted(item.photos.length, "photo") })));
}
async function fill() {
  const mine = ++searched;
  const found = { ids: [], next: "" };
  while (found.next !== null && found.ids.length < shown) { // the API gives pages
    const page = await get(`v1/items?${new URLSearchParams({ find: search.value.trim(), after: found.next, limit: PAGE })}`);
    found.ids.push(...page.items);
    found.next = page.next;
  }
  const here = opened();
  if (here && !search.value && !found.ids.includes(here)) found.ids.unshift(here); // such as one that is new
  const items = (await Promise.all(found.ids.map(itemOrNull))).filter(Boolean);
  if (mine !== searched) return;
  const focused = list.contains(document.activeElement) ? document.activeElement.hash : null;
  list.replaceChildren(...items.map(listed));
  if (!items.length) list.append(make("li", { className: "soft", textContent: search.value ? "No item has this text." : "There are no items yet." }));
  more.hidden = found.next === null;
  mark();
  if (focused) [...list.querySelectorAll("a")].find((link) => link.hash === focused)?.focus();
}
function mark() {
  for (const link of list.querySelectorAll("a")) link.ariaCurrent = link.hash === location.hash ? "true" : null;
}
async function newItem() {
  const files = make("input", { type: "file", name: "files", accept: "image/*", multiple: true, required: true });
  const given = await ask("New item", [itemField("Id of the item"), make("label", { textContent: "Photos" }, files)], "Add");
  if (!given) return false;
  const id = given.to.value.trim();
  await addPhotos(id, given.files.files);
  search.value = "";
  open(id);
}
async function showItems() {
  const mine = number, id = opened(), item = id === null ? null : await getItem(id);
  const filled = list.childElementCount && main.contains(left) && !stale ? null : fill();
  mark();
  await filled;
  if (mine !== number) return null; // a later view is shown
  stale = false;
  const right = make("section", { className: "right", ariaLabel: id ?? "No item" }, ...(item ? itemParts(item) : [soft("Choose an item, or add a new one.")]));
  const className = item ? "panes opened" : "panes";
  if (!main.contains(left)) return [make("div", { className }, left, right)];
  const top = list.scrollTop;
  main.firstChild.className = className;
  main.querySelector(".right").replaceWith(right);
  list.scrollTop = top;
  return null;
}
function itemParts(item) {
  const id = item.item_id, chosen = new Set(), tools = make("div", { className: "tools row" });
  const photos = () => item.photos.filter((photo) => chosen.has(photo.photo_id));
  const grid = make("ul", { className: "cards" });
  const all = make("input", { type: "checkbox", onchange: () => { for (const box of grid.querySelectorAll("input")) box.checked = all.checked; choose(); } });
  const fields = make("div");
  const choose = () => {
    chosen.clear();
    for (const box of grid.querySelectorAll("input:checked")) chosen.add(box.value);
    all.checked = chosen.size === item.photos.length;
    all.indeterminate = chosen.size > 0 && !all.checked;
    for (const each of tools.querySelectorAll("button")) each.hidden = !chosen.size;
    tools.querySelector("output").textContent = chosen.size ? `${chosen.size} of ${item.photos.length}` : counted(item.photos.length, "photo");
    fields.replaceChildren(...columnFields(item, chosen.size ? photos() : item.photos));
  };
  const after = (rest) => { if (!rest) open(); };
  tools.append(make("label", { className: "row" }, all, "All"), make("output", { className: "soft" }),
    button("Move…", async () => {
      const given = await ask(`Move ${counted(chosen.size, "photo")}`, [make("div", { className: "few" }, ...photos().slice(0, 6).map((photo) => picture(photo.photo_id))), itemField("To this item; an id that is new makes a new item")], "Move");
      if (!given) return false;
      const moved = photos(), to = given.to.value.trim(), all = moved.length === item.photos.length;
      const other = to === id ? null : await itemOrNull(to);
      if (all && other) { const kept = await merge(item, other); if (!kept) return false; open(kept); return; }
      tell(`Moved ${counted(moved.length, "photo")} from ${id} to ${to}.`, await moveTo(moved, to));
      if (all) open(to);
    }),
    button("Remove", async () => {
      const gone = photos();
      await remove(gone, `${counted(gone.length, "photo")} of ${id}`);
      after(item.photos.length - gone.length);
    }, "bad"));
  grid.append(...item.photos.map((photo) => make("li", {}, make("label", {}, make("input", { type: "checkbox", value: photo.photo_id, onchange: choose }), picture(photo.photo_id), make("span", { className: "soft", textContent: photo.photo_id.split("/").at(-1), title: photo.photo_id })))));
  const files = make("input", { type: "file", accept: "image/*", multiple: true });
  files.onchange = () => change(null, () => addPhotos(id, files.files));
  choose();
  return [
    make("a", { href: "#items", className: "back", textContent: "‹ All items" }),
    make("h2", { textContent: titleOf(item) }), ...(titleOf(item) === id ? [] : [soft(id)]),
    tools, grid, row(make("label", { className: "button" }, "Add photos", files)),
    fields,
    row(button("Change the id or merge…", async () => {
      const given = await ask(`Another id for ${id}`, [itemField("New id; that of another item merges the two", id)], "Change");
      const to = given?.to.value.trim();
      if (!to || to === id) return false;
      const other = await itemOrNull(to);
      const kept = other ? await merge(item, other) : to;
      if (!kept) return false;
      if (!other) tell(`${id} is ${to} now.`, await moveTo(item.photos, to));
      open(kept);
    }, "plain"), button("Remove the item", async () => { await remove(item.photos, id); open(); }, "plain bad")),
  ];
}
// fields for each column of some photos of an item
function columnFields(item, photos) {
  const { columns } = info.gallery;
  const names = new Set(["name", ...Object.keys(columns), ...photos.flatMap((photo) => Object.keys(photo.metadata))]);
  const written = (value) => (value === undefined || value === null ? "" : value.rawJSON ?? String(value));
  const kindOf = (name) => columns[name] ?? photos.map((photo) => photo.metadata[name]).map((value) => (value?.rawJSON ? "number" : value === null || value === undefined ? "" : typeof value)).find(Boolean) ?? "text";
  const fields = [...names].filter((name) => !name.startsWith("_")).map((name) => {
    const values = new Set(photos.map((photo) => written(photo.metadata[name])));
    const same = values.size === 1 ? [...values][0] : "";
    return { name, same, input: make("input", { name, value: same, placeholder: values.size > 1 ? "differs" : "", maxLength: 2000 }) };
  });
  const save = make("button", { textContent: photos.length === item.photos.length ? "Save" : `Save for ${counted(photos.length, "photo")}`, className: "main", disabled: true });
  const form = make("form", { className: "columns" }, ...fields.map(({ name, input }) => make("label", { textContent: name }, input)), row(save));
  const edited = () => fields.filter(({ same, input }) => input.value !== same);
  form.oninput = () => { save.disabled = !edited().length; };
  form.onsubmit = (event) => {
    event.preventDefault();
    const new_values = edited();
    if (new_values.length) change(save, async () => {
      const next = Object.fromEntries(new_values.map(({ name, input }) => [name, valueOf(name, input.value, kindOf(name))]));
      const undo = await set(photos, (photo) => ({ metadata: Object.fromEntries(Object.entries({ ...photo.metadata, ...next }).filter(([, value]) => value !== undefined)) }));
      tell(`Changed ${new_values.map(({ name }) => name).join(", ")} of ${item.item_id}.`, undo);
    });
  };
  return [form];
}
// what a column of a kind holds, given as text; undefined if empty
function valueOf(name, text, kind) {
  if (!text.trim()) return undefined;
  if (kind === "boolean") {
    if (!/^(true|false)$/i.test(text.trim())) throw new Error(`${name} must be true or false.`);
    return /true/i.test(text);
  }
  if (kind !== "number") return text;
  const number = Number(text);
  if (!Number.isFinite(number)) throw new Error(`${name} must be a number.`);
  return Number.isInteger(number) && !Number.isSafeInteger(number) && JSON.rawJSON && /^\s*-?[0-9]+\s*$/.test(text) ? JSON.rawJSON(text.trim()) : number;
}

// --- judge: one doubtful answer at a time, by keys
let queue = null, judged = 0, first = 0, posting = Promise.resolve(), rates = null;
const cases = new Map(); // what is shown of an answer, by request id
const RATE_NAMES = { tpir: "Photos of catalogue items that find their item", fpir: "Unknown items that return a match, expected", unknown: "Judged photos of other things that return a match" };
const percent = (share) => (typeof share === "number" ? `${(100 * share).toFixed(1)} %` : "not measured");

function load(answer) {
  if (!cases.has(answer.request_id)) cases.set(answer.request_id, fetchCase(answer).catch((error) => { cases.delete(answer.request_id); throw error; }));
  return cases.get(answer.request_id);
}
// the photo that is shown is the one that is judged and added: another search may use the same request id meanwhile
async function fetchCase(answer) {
  const base = `v1/admin/answers/${encodeURIComponent(answer.request_id)}`;
  const [sent, closest] = await Promise.all([fetch(`${base}/photo`), get(`${base}/closest`).catch(() => [])]);
  if (!sent.ok || ![`"${answer.photo}"`, null].includes(sent.headers.get("etag"))) return null;
  const blob = await sent.blob(), url = URL.createObjectURL(blob);
  const ids = [...new Set([answer.item_id, ...closest.map((each) => each.item_id)])].slice(0, 6);
  const [asked, ...others] = (await Promise.all(ids.map(itemOrNull))).filter(Boolean);
  const shownOf = new Map(closest.map((each) => [each.item_id, each.photo_id]));
  const images = [url, ...[asked, ...others].filter(Boolean).map((item) => path("thumbnails", shownOf.get(item.item_id) ?? item.photos[0].photo_id))];
  await Promise.all(images.map((src) => Object.assign(new Image(), { src }).decode().catch(() => {})));
  return { blob, url, asked, others, photoOf: (item) => shownOf.get(item.item_id) ?? item.photos[0].photo_id };
}
async function showJudge() {
  if (queue === null) {
    const asked = await get("v1/admin/answers");
    queue = asked.filter((answer) => !answer.verdict);
    first = queue.length;
    judged = 0;
  }
  const answer = queue[0];
  for (const next of queue.slice(1, 1 + AHEAD)) load(next).catch(() => {}); // it is tried again when it is shown
  if (!answer) return [make("h2", { textContent: judged ? "All judged" : "Nothing to judge" }), soft(judged ? "Thank you. New doubtful answers will be here." : "Answers that were not sure are here for a day, if the server keeps their photos (retrieval serve --feedback-photos)."), ratesParts(), await judgedParts()];
  let seen;
  try { seen = await load(answer); } catch (error) { return [make("h2", { textContent: "This answer could not be loaded" }), soft(error.message), row(button("Try again", () => {}))]; }
  if (!seen) { queue.shift(); return showJudge(); } // its photo is no longer kept
  return [caseParts(answer, seen), ratesParts()];
}
function caseParts(answer, seen) {
  const { asked, others } = seen;
  const judge = (verdict, item_id = "") => () => decide(answer, seen, verdict, item_id);
  const is = (item) => (item.item_id === answer.item_id ? judge("right") : judge("wrong", item.item_id));
  const ours = !asked ? soft("Its item is no longer in the catalogue.") : make("figure", {}, make("img", { src: path("thumbnails", seen.photoOf(asked)), alt: `The catalogue's photo of ${titleOf(asked)}` }),
    make("div", { className: "few" }, ...asked.photos.map((photo) => photo.photo_id).filter((photo) => photo !== seen.photoOf(asked)).slice(0, 5).map(picture)),
    make("figcaption", {}, itemLink(asked.item_id, titleOf(asked)), titleOf(asked) === asked.item_id ? "" : ` ${asked.item_id}`));
  const made = make("section", { className: "case", tabIndex: -1, ariaLabel: "Answer to judge" },
    make("p", { className: "soft", id: "counter", textContent: `${judged} judged, ${queue.length} left` }), make("progress", { max: first || 1, value: first - queue.length, ariaLabel: "Judged" }),
    make("h2", { textContent: asked ? `Is it ${titleOf(asked)}?` : "Which item is it?" }),
    make("div", { className: "two" }, make("figure", {}, make("img", { src: seen.url, alt: "The photo that was sent" }), make("figcaption", { className: "soft", textContent: "The photo that was sent" })), ours),
    row(...(asked ? [button("Yes", is(asked), "main", "Y"), button("No", judge("wrong"), "", "N")] : []), button("Not ours", judge("unknown"), "", "O"), button("Skip", () => { next(answer); }, "plain", "S")),
    make("aside", { className: "closest", hidden: !others.length }, soft("Or is it one of these?"), ...others.slice(0, 5).map((item, number) => {
      const made = button("", is(item), "choice", String(number + 1));
      made.prepend(picture(seen.photoOf(item)), make("span", { textContent: titleOf(item) }));
      return made;
    }), button("Another or a new item…", async () => {
      const given = await ask("Which item is it?", [itemField("Item; an id that is new makes a new item with this photo")], "Judge");
      if (!given) return false;
      return decide(answer, seen, "wrong", given.to.value.trim());
    }, "plain", "E")));
  made.dataset.request = answer.request_id;
  return made;
}
function next(answer) {
  queue = queue.filter((each) => each !== answer);
}
// a verdict is sent while the next answer is shown; an item that is new gets the photo first
function decide(answer, seen, verdict, item_id) {
  if (!queue.includes(answer)) return; // it was judged, and the next one is not shown yet
  const request_id = answer.request_id, judging = posting.then(async () => {
    const right = item_id && item_id === answer.item_id ? { verdict: "right" } : { verdict, item_id };
    const known = !item_id || seen.others.concat(seen.asked ?? []).some((item) => item.item_id === item_id) || (await itemOrNull(item_id));
    const added = known ? null : await add(seen.blob, `answer-${request_id}`, item_id);
    try { await post("v1/feedback", { request_id, photo: answer.photo, ...right }); } catch (error) { await added?.(); throw error; }
    return added;
  });
  posting = judging.then(() => {}, async (error) => { // it is asked again, and there is nothing to undo
    judged--;
    queue?.unshift(answer);
    const at = undoing.findIndex((each) => each.of === answer);
    if (at >= 0) undoing.splice(at, 1);
    await show().catch(() => {});
    showSaid();
    find("#done").hidden = true;
    fail(error);
  });
  next(answer);
  judged++;
  const said = { right: `is ${answer.item_id}`, unknown: "is not ours", wrong: item_id ? `is ${item_id}` : `is not ${answer.item_id}` }[verdict];
  tell(`Judged: it ${said}.`, async () => {
    const added = await judging;
    await call("DELETE", path("feedback", request_id));
    await added?.();
    judged--;
    queue?.unshift(answer);
    location.hash = "judge";
  });
  undoing.at(-1).of = answer;
  if (judged % ROUND === 0 || !queue.length) measureJudged();
}
function measureJudged() {
  const count = judged;
  rates = { count };
  posting.then(() => post("v1/admin/calibrate?judged=true")).then((told) => { rates = { count, ...told }; }, (error) => { rates = { count, error }; })
    .then(() => find("#judged-rates")?.replaceWith(ratesParts()));
}
function ratesParts() {
  const box = make("aside", { id: "judged-rates", ariaLive: "polite", hidden: !rates });
  if (!rates) return box;
  box.append(make("h3", { textContent: `After ${counted(rates.count, "judged answer")}` }));
  if (rates.error) box.append(soft(rates.error.message));
  else if (!rates.rates) box.append(soft("Measuring with the judged photos…"));
  else box.append(table(["", "Now", "With the judged photos"], Object.entries(rates.rates).map(([name, rate]) => [RATE_NAMES[name] ?? name, percent(rate.before), percent(rate.after)])),
    soft(`Nothing is set yet: export the judged photos with "retrieval feedback export" and calibrate. Doubtful answers are harder than most.`));
  return box;
}
// judged photos that show an item can be added to it
async function judgedParts() {
  const rightOf = ({ verdict, decision, item_id, right_item_id }) => (verdict === "right" && decision !== "no_match" ? item_id : verdict === "wrong" ? right_item_id : "");
  await posting;
  const rows = (await get("v1/admin/answers")).filter(rightOf);
  if (!rows.length) return "";
  const boxes = rows.map((answer) => {
    const box = make("input", { type: "checkbox" }), image = make("img", { alt: "" });
    const photo = load(answer).catch(() => null).then((seen) => { if (seen) image.src = seen.url; else box.disabled = true; return seen; });
    return { answer, box, photo, card: make("li", {}, make("label", {}, box, image, make("span", { textContent: rightOf(answer) }))) };
  });
  const addChosen = button("Add the chosen photos to their items", async () => {
    const taken = boxes.filter(({ box }) => box.checked);
    if (!taken.length) throw new Error("Choose some photos first.");
    await addAll(await Promise.all(taken.map(async ({ answer, photo }) => [(await photo).blob, `answer-${answer.request_id}`, rightOf(answer)])));
  });
  const all = make("input", { type: "checkbox", onchange: () => { for (const { box } of boxes) box.checked = all.checked && !box.disabled; } });
  return make("section", {}, make("h3", { textContent: "Judged photos" }), soft("Add those that help to recognize their item."), row(make("label", { className: "row" }, all, "All"), addChosen), make("ul", { className: "cards" }, ...boxes.map(({ card }) => card)));
}

// --- twins: pairs are kept apart in this browser only, since nothing else depends on it
let twins = null, pairAt = "";
const nameOf = (pair) => [pair.item_id, pair.other_item_id].sort().join("\n");
function keptApart() {
  try { return new Set(JSON.parse(localStorage.getItem(APART))); } catch { return new Set(); } // not written by this page
}
const cost = (pair) => (pair.why !== "close" ? pair.why : typeof pair.cost === "number" ? `costs ${(100 * pair.cost).toFixed(1)} points` : "cost not measured");
async function showTwins() {
  if (twins === null) twins = await get("v1/admin/look-alikes");
  const apart = keptApart(), pairs = twins.filter((pair) => !pair.done && !apart.has(nameOf(pair)));
  const pair = pairs.find((each) => nameOf(each) === pairAt) ?? pairs[0];
  if (!pair) return [make("h2", { textContent: "No twins" }), soft("No items are hard to tell apart.")];
  const [one, other] = await Promise.all([itemOrNull(pair.item_id), itemOrNull(pair.other_item_id)]);
  if (!one || !other) { pair.done = true; return showTwins(); }
  const rows = pairs.map((each) => make("li", {}, make("button", { type: "button", className: "pair", ariaCurrent: each === pair ? "true" : null, onclick: () => { pairAt = nameOf(each); show().catch(fail); } },
    picture(each.photo_id), picture(each.other_photo_id), make("span", {}, make("b", { textContent: `${each.item_id}, ${each.other_item_id}` }), make("span", { className: "soft", textContent: cost(each) })))));
  const finish = (text, undo) => { pair.done = true; tell(text, async () => { await undo(); pair.done = false; pairAt = nameOf(pair); }); };
  const side = (item, photo) => make("figure", {}, make("img", { src: path("thumbnails", photo), alt: `A photo of ${titleOf(item)}` }), make("figcaption", {}, itemLink(item.item_id, titleOf(item)), ` ${counted(item.photos.length, "photo")}`));
  const told = pair.why !== "close" ? `They share a photo (${pair.why}).` : typeof pair.cost === "number" ? `If they were one item, ${(100 * pair.cost).toFixed(1)} more of 100 photos of the catalogue would find their item (TPIR).` : "A photo of one comes close to the other.";
  return [make("div", { className: "panes opened" }, make("section", { className: "left", ariaLabel: "Pairs" }, soft(`${counted(pairs.length, "pair")}, the ${pairs.some((each) => typeof each.cost === "number") ? "most costly" : "closest"} first`), make("ul", { className: "list" }, ...rows)),
    make("section", { className: "right case", ariaLabel: "Pair" }, make("h2", { textContent: "Are these one thing?" }), soft(told), make("div", { className: "two" }, side(one, pair.photo_id), side(other, pair.other_photo_id)),
      row(button("Merge…", async () => {
        if (!(await merge(one, other))) return false;
        const { text, undo } = undoing.pop();
        finish(text, undo);
      }, "main", "M"), button("One group", async () => {
        const group = [one, other].map((item) => item.photos[0].metadata.group).find((value) => value !== undefined && value !== null && value !== false && value !== "") ?? one.item_id;
        finish(`${one.item_id} and ${other.item_id} are of the group ${group}.`, await set([...one.photos, ...other.photos], (photo) => ({ metadata: { ...photo.metadata, group } })));
      }, "", "G"), button("Keep apart", () => {
        const keep = (names) => localStorage.setItem(APART, JSON.stringify([...names]));
        keep(keptApart().add(nameOf(pair)));
        tell(`${pair.item_id} and ${pair.other_item_id} are kept apart in this browser.`, async () => { const names = keptApart(); names.delete(nameOf(pair)); keep(names); pairAt = nameOf(pair); });
      }, "", "K")),
      soft("Merge: one item under one id. One group: two ids that are no rivals, such as two sizes of one thing. Keep apart: two things; the pair is not listed again.")))];
}

// --- removed photos, which can be restored for a day
async function showRemoved() {
  const removals = await get("v1/admin/removed"), time = (text) => new Date(text).toLocaleString([], { weekday: "short", hour: "2-digit", minute: "2-digit" });
  const intro = soft(removals.length ? "Photos that were removed in the last day. Then they are erased." : "No photos were removed in the last day.");
  return [make("h2", { textContent: "Removed" }), intro, make("ul", { className: "removed" }, ...removals.map((each) => make("li", {},
    make("span", {}, make("b", { textContent: each.item_ids.join(", ") }), make("span", { className: "soft", textContent: `${counted(each.photo_ids.length, "photo")}, removed ${time(each.time)}, kept until ${time(each.until)}` })),
    button("Restore", async () => {
      await post(`v1/admin/removed/${each.removal}/restore`);
      tell(`Restored ${counted(each.photo_ids.length, "photo")} of ${each.item_ids.join(", ")}.`, () => post("v1/admin/removed", { photos: each.photo_ids.map((photo_id) => ({ photo_id })) }));
    }))))];
}

// --- threshold and rates
let measured = null;
function table(head, rows) {
  return make("table", {}, make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { textContent: text, scope: "col" })))),
    make("tbody", {}, ...rows.map(([name, ...values]) => make("tr", {}, make("th", { textContent: name, scope: "row" }), ...values.map((value) => make("td", { textContent: value }))))));
}
async function showRates() {
  const now = { ...info, evidence: { ...info.evidence, fpir_expected: info.in_gallery?.fpir_expected, fpir_upper: info.in_gallery?.fpir_upper } }; // in this version
  const points = measured ? [measured.before, measured.after] : [now], of = (name) => points.map((point) => percent(point.evidence?.[name]));
  return [make("h2", { textContent: "How often is the search right?" }), ...(info.sides ? [make("p", { textContent: info.sides.text })] : []),
    table(["", ...(measured ? ["Before", "After"] : [`Now (${info.threshold_status})`])], [
      ["Unknown items that return a match", ...of("fpir_expected")], ["At most (with 95 % confidence)", ...of("fpir_upper")], ["Catalogue photos that find their item", ...of("tpir")],
      ["Threshold", ...points.map((point) => (typeof point.threshold === "number" ? point.threshold.toFixed(4) : "none"))]]),
    ...(measured?.told ?? []).map(soft), soft("Measure again after larger changes of the catalogue: each item is left out in turn and searched for."),
    row(button("Measure again", async () => { measured = await post("v1/admin/calibrate"); tell("The threshold was measured again."); }), make("a", { href: "v1/report", textContent: "The whole report" }))];
}

// --- which view
const VIEWS = { items: showItems, item: showItems, judge: showJudge, twins: showTwins, removed: showRemoved, rates: showRates };
let number = 0, info = null, stale = false;
const view = () => { const name = location.hash.slice(1).split(/[=&]/)[0]; return name in VIEWS ? name : "items"; };
async function show() {
  const mine = ++number, name = view();
  for (const link of document.querySelectorAll("nav a")) link.ariaCurrent = link.hash === `#${name === "item" ? "items" : name}` ? "page" : null;
  if (name !== "judge" || !info) { // while answers are judged, the catalogue is rarely changed
    const told = await get("v1/info");
    stale ||= told.gallery.version !== info?.gallery.version;
    info = told;
    find("#facts").textContent = `${counted(info.gallery.items, "item")}, ${counted(info.gallery.photos, "photo")}`;
  }
  const parts = await VIEWS[name]();
  if (mine !== number || parts === null) return;
  const inside = main.contains(document.activeElement);
  main.replaceChildren(...parts);
  if (inside) main.querySelector(".case")?.focus();
}
function enter() {
  find("#wrong").hidden = true;
  if (!["items", "item"].includes(view()) || !main.contains(left)) main.replaceChildren(soft("Loading…"));
  if (view() !== "judge") queue = null;
  if (view() !== "twins") twins = null;
  show().catch((error) => { main.replaceChildren(); fail(error); });
}
document.addEventListener("keydown", (event) => {
  if (event.repeat || event.altKey || dialog.open || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox") return;
  const key = event.key.toLowerCase();
  if (key === "z" && (event.ctrlKey || event.metaKey) || key === "u" && view() === "judge" && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    if (!undo.hidden) undo.click();
  } else if (!event.ctrlKey && !event.metaKey && /^[a-z1-5]$/.test(key)) {
    const pressed = main.querySelector(`[data-key="${key}"]`);
    if (pressed) event.preventDefault(); // the letter does not go into a dialog that it opens
    pressed?.click();
  }
});
window.addEventListener("hashchange", enter);
enter();
