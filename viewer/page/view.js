// The state of the page, its drawing, and the URL that holds the state.
"use strict";

/** The recording is embedded in an exported page, and is read from the server otherwise. */
const model = new Model(byId("recording") === null);

const state = {
  /** The selected run. @type {string | undefined} */
  run: undefined,
  /** The selected note, by its number. @type {number | undefined} */
  note: undefined,
  /** The top-level run that the tree shows. @type {string | undefined} */
  root: undefined,
  /** The run below which the tree is shown. @type {string | undefined} */
  focus: undefined,
  tab: 0,
  follows: model.isLive,
  /** `true` until the recording was read to its end for the first time. */
  isOpening: true,
  /** `true` until the selection that the page opens with is in view. */
  isRevealing: false,
  /** The version of the model in which it was last brought into view. */
  revealed: -1,
  isFlame: false,
  color: "kind",
  search: new Search(),
  /** Runs whose children are hidden. @type {Set<string>} */
  closed: new Set(),
};

const records = new Records((at, number) => readRecord(at, number));
const tabs = new Tabs(records);

let isScheduled = false;

/** Draws before the next frame, once however often it is called. */
function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    draw();
  });
}

/** Changes the state, writes it to the URL, and draws. @param {Partial<typeof state>} changes */
function change(changes) {
  Object.assign(state, changes, { isOpening: false, isRevealing: false });
  writeUrl();
  schedule();
}

// ---- Lists

/** @type {VirtualList<Item>} */
const list = new VirtualList(byId("runs"), {
  key: (item) => keyOf(item),
  look: ({ run, note }) => (run ? `${labelOf(model, run)} ${run.isEnded || model.now}` : textOfNote(note)),
  render: ({ run, note }) => (run ? cardOf(run) : [make("span", { class: "note" }, [`⚠ ${textOfNote(note)}`])]),
  attributes: ({ run, note }, index) => ({
    role: "option",
    "aria-selected": String(run ? run === shownRoot() : note.head.number === state.note),
    "aria-posinset": String(index + 1),
    "aria-setsize": String(listed().length),
    title: run ? labelOf(model, run) : visible(textOfNote(note)),
    class: run ? classesOf(run, "card") : "card note",
  }),
  choose: (item) => select(item),
});

/** @type {VirtualList<Row>} */
const tree = new VirtualList(byId("tree"), {
  key: (row) => keyOf(row),
  look: ({ run, note, level, isMatch }) => {
    if (!run) return textOfNote(note);
    return `${labelOf(model, run)} ${level} ${isMatch} ${run.children.length} ${state.closed.has(run.id)} ${shown.look}`;
  },
  render: (row) => (row.run ? rowOf(row) : [indent(row.level), make("span", { class: "note" }, [`⚠ ${textOfNote(row.note)}`])]),
  attributes: ({ run, note, level, position, size }) => ({
    role: "treeitem",
    "aria-level": String(level),
    "aria-posinset": String(position),
    "aria-setsize": String(size),
    "aria-selected": String(run ? run.id === state.run : note.head.number === state.note),
    ...(run && run.children.length > 0 ? { "aria-expanded": String(!state.closed.has(run.id)) } : {}),
    title: run ? labelOf(model, run) : visible(textOfNote(note)),
    class: run ? classesOf(run, "row") : "row note",
  }),
  choose: (row, event) => {
    const isTwisty = /** @type {HTMLElement} */ (event.target).classList.contains("twisty");
    if (isTwisty && row.run) toggle(row.run);
    else select(row);
  },
});

const flame = new Flame(byId("flame"), (run) => select({ run }));

/** What the tree shows. */
const shown = {
  run: /** @type {Run | undefined} */ (undefined),
  scale: /** @type {ReturnType<typeof scaleOf> | undefined} */ (undefined),
  look: "",
};

/** @param {Item} row */
function keyOf({ run, note }) {
  return run ? run.id : `note-${note.head.number}`;
}

/** @param {Run} run @param {string} name */
function classesOf(run, name) {
  return [name, `is-${model.outcomeOf(run)}`, ...(found.ids.has(run.id) ? ["match"] : [])].join(" ");
}

/** @param {number} level */
function indent(level) {
  // Deep trees must not push the names out of view, so a row that is not indented further says how deep it is.
  const space = make("span", { class: "indent" }, level > 21 ? [`level ${level}`] : []);
  space.style.width = `${Math.min(level - 1, 20) * 0.9}rem`;
  return space;
}

/** @param {Run} run */
function outcomeElement(run) {
  const name = model.outcomeOf(run);
  const { sign, word } = OUTCOMES[name];
  return make("span", { class: `outcome text-${name}` }, [make("b", { "aria-hidden": "true" }, [sign]), ` ${word}`]);
}

/** @param {Run} run */
function cardOf(run) {
  const facts = [formatDuration(model.durationOf(run)), ...usageOf(run)];
  if (run.errorsBelow > 0) facts.push(errorsOf(run));
  if (run.isInCycle) facts.push("⚠ parent cycle");
  return [
    make("span", { class: "name" }, [titleOf(run)]),
    outcomeElement(run),
    make("span", { class: "facts" }, [facts.join(" · ")]),
    make("span", { class: "facts when" }, [run.started === undefined ? "" : formatTime(run.started).slice(0, 19)]),
  ];
}

/** @param {Row} row */
function rowOf({ run, level }) {
  const hasChildren = run.children.length > 0;
  const twisty = make("span", { class: "twisty", "aria-hidden": "true" }, [hasChildren ? (state.closed.has(run.id) ? "▸" : "▾") : ""]);
  const label = make("span", { class: "label" }, [
    indent(level),
    twisty,
    make("span", { class: `kind ${hueOf(model, run.kind)}` }, [run.kind || "run"]),
    make("span", { class: "name" }, [run.name || titleOf(run)]),
    ...(run.errorsBelow > 0 ? [make("span", { class: "facts text-failed" }, [errorsOf(run)])] : []),
    ...(run.isInCycle ? [make("span", { class: "note" }, ["⚠ parent cycle"])] : []),
    ...(run.discarded > 0 ? [make("span", { class: "facts" }, [`${run.discarded + 1} attempts`])] : []),
    ...(run.tokens > 0 ? [make("span", { class: "facts" }, usageOf(run).slice(0, 1))] : []),
  ]);
  const facts = make("span", { class: "facts" }, [formatDuration(model.durationOf(run))]);
  return [label, outcomeElement(run), facts, barOf(model, run, shown.scale)];
}

// ---- Drawing

function newestRoot() {
  return model.roots[model.roots.length - 1];
}

/** The top-level run whose tree is shown. @returns {Run | undefined} */
function shownRoot() {
  if (state.follows) return newestRoot();
  return model.get(state.focus ?? state.root ?? state.run)?.root ?? newestRoot();
}

function draw() {
  updateFound();
  if (state.isOpening && model.isEnd) choose();
  const run = model.get(state.run);
  const root = shownRoot();
  shown.run = (!state.follows && model.get(state.focus)) || root;
  list.draw(listed());
  mark(byId("runs"), root && `runs-${root.id}`);
  drawTree();
  const note = state.note === undefined ? undefined : model.notes.find(({ head }) => head.number === state.note);
  tabs.draw(model, run, note, state.tab);
  drawSwitches();
  drawStatus();
  if (state.isRevealing && (run || note) && state.revealed !== model.version) {
    // Records that are read later may move the selected row.
    state.isRevealing = !model.isEnd;
    state.revealed = model.version;
    reveal();
  }
}

/** Chooses what the page of a finished recording opens on: its first error, or else its beginning. */
function choose() {
  state.isOpening = false;
  const isFinished = !model.isLive || model.open === 0;
  if (!isFinished || state.run !== undefined || state.note !== undefined) return;
  const run = model.firstError ?? model.roots[0];
  if (run) Object.assign(state, { run: run.id, root: run.root.id, follows: false, isRevealing: true });
}

function drawTree() {
  setText(byId("tree-title"), shown.run ? titleOf(shown.run) : "Tree");
  byId("tree").hidden = state.isFlame;
  byId("flame").hidden = !state.isFlame;
  if (!shown.run) {
    tree.draw([]);
    return;
  }
  shown.scale = scaleOf(model, shown.run);
  shown.look = `${shown.scale.start} ${shown.scale.span}`;
  drawAxis(byId("axis"), shown.scale);
  const isMatch = (/** @type {Run} */ run) => found.ids.has(run.id);
  if (state.isFlame) {
    const filter = hidesOthers() ? found.look : "";
    flame.draw(model, shown.run, state.color, { selected: model.get(state.run), isMatch, filter });
    mark(byId("flame"), state.run === undefined ? undefined : `flame-${state.run}`);
    return;
  }
  const rows = shownRows();
  if (state.follows) {
    tree.rows = rows;
    tree.show(rows.length - 1);
  }
  tree.draw(rows);
  mark(byId("tree"), state.run ? `tree-${state.run}` : state.note === undefined ? undefined : `tree-note-${state.note}`);
}

/** The items of the list, cached until the model or the search has changed. */
const cachedList = { look: "", items: /** @type {Item[]} */ ([]) };

function listed() {
  const hides = hidesOthers();
  const look = `${model.version} ${hides && found.look}`;
  if (cachedList.look !== look) {
    cachedList.look = look;
    cachedList.items = hides ? model.list().filter(({ run }) => run && found.kept.has(run)) : model.list();
  }
  return cachedList.items;
}

/** The rows of the tree, cached until the model or the state has changed. */
const cachedRows = { look: "", rows: /** @type {Row[]} */ ([]) };

function shownRows() {
  if (!shown.run) return [];
  const look = `${model.version} ${shown.run.id} ${[...state.closed].join()} ${hidesOthers() && found.look}`;
  if (cachedRows.look !== look) {
    cachedRows.look = look;
    cachedRows.rows = model.rows(shown.run, { isOpen: (run) => !state.closed.has(run.id), isShown });
  }
  return cachedRows.rows;
}

/** Names the active row, if it has an element. @param {HTMLElement} element @param {string | undefined} id */
function mark(element, id) {
  if (id !== undefined && document.getElementById(id)) element.setAttribute("aria-activedescendant", id);
  else element.removeAttribute("aria-activedescendant");
}

function drawSwitches() {
  byId("follow").setAttribute("aria-pressed", String(state.follows));
  byId("follow").hidden = !model.isLive;
  byId("flame-switch").setAttribute("aria-pressed", String(state.isFlame));
  byId("focus").setAttribute("aria-pressed", String(state.focus !== undefined && !state.follows));
  byId("color").hidden = !state.isFlame;
  byId("color").value = state.color;
  const kinds = byId("find-kind");
  if (kinds.options.length !== model.kinds.size + 1) {
    const names = [...model.kinds.keys()].sort();
    kinds.replaceChildren(make("option", { value: "" }, ["any kind"]), ...names.map((kind) => make("option", { value: kind }, [kind])));
    kinds.value = state.search.kind;
  }
  const at = found.runs.findIndex((run) => run.id === state.run);
  const position = at < 0 ? "" : `${formatCount(at + 1)} of `;
  byId("find-count").textContent = state.search.isEmpty ? "" : `${position}${formatCount(found.runs.length)}`;
}

/** What the connection is doing. */
let connection = "";

function drawStatus() {
  const facts = [`${formatCount(model.count)} records`, `${formatCount(model.runs.size)} runs`];
  if (model.open > 0) facts.push(`${formatCount(model.open)} ${OUTCOMES[model.isLive ? "running" : "unfinished"].word}`);
  if (model.lost > 0) facts.push(`${formatCount(model.lost)} events lost`);
  if (model.cycles > 0) facts.push(`${formatCount(model.cycles)} cycles of parents`);
  if (model.malformed > 0) facts.push(`${formatCount(model.malformed)} malformed lines`);
  if (model.outside.count > 0) facts.push(`${formatCount(model.outside.count)} events outside of runs`);
  if (model.incomplete > 0) facts.push(`the last line is not complete: ${formatBytes(model.incomplete)}`);
  if (state.isFlame && flame.narrow > 0) facts.push(`${formatCount(flame.narrow)} runs are too narrow to be drawn`);
  if (connection) facts.push(connection);
  setText(byId("status"), facts.join(" · "));
}

// ---- Selecting

/** @param {Item} row */
function select({ run, note }) {
  const root = run ? run.root.id : shownRoot()?.id;
  const focus = run && state.focus !== undefined && isBelow(run, state.focus) ? state.focus : run ? undefined : state.focus;
  change({ run: run?.id, note: note?.head.number, root, focus, follows: false });
}

/** @param {Run} run @param {string} id */
function isBelow(run, id) {
  for (let above = /** @type {Run | undefined} */ (run); above; above = above.parent) if (above.id === id) return true;
  return false;
}

/** @param {Run} run */
function toggle(run) {
  if (!state.closed.delete(run.id)) state.closed.add(run.id);
  change({ follows: false });
}

/** Selects a run and brings it into view. @param {Run} run */
function visit(run) {
  for (let above = run.parent; above; above = above.parent) state.closed.delete(above.id);
  select({ run });
  draw();
  reveal();
}

function reveal() {
  const selected = model.get(state.run);
  const index = indexOfSelected(tree.rows);
  if (state.isFlame && selected) flame.show(selected);
  else if (index >= 0) tree.show(index);
  const root = selected ? shownRoot() : undefined;
  const inList = list.rows.findIndex(({ run, note }) => (run ? run === root : note.head.number === state.note));
  if (inList >= 0) list.show(inList);
  schedule();
}

/** @param {Item[]} rows */
function indexOfSelected(rows) {
  return rows.findIndex(({ run, note }) => (run ? run.id === state.run : note.head.number === state.note));
}

/** Selects the next run of some runs, in the order of their first records. @param {Run[]} runs @param {number} step */
function visitNext(runs, step) {
  if (runs.length === 0) return;
  const current = model.get(state.run);
  const order = current ? current.order : -1;
  const next = step > 0 ? runs.find((run) => run.order > order) : [...runs].reverse().find((run) => run.order < order);
  visit(next ?? runs[step > 0 ? 0 : runs.length - 1]);
}

/** @param {number} step */
function visitError(step) {
  const isError = (/** @type {Run} */ run) => ERRORS.has(model.outcomeOf(run));
  visitNext([...model.runs.values()].filter(isError), step);
}

function focusSelected() {
  const isFocused = state.focus !== undefined;
  change({ focus: isFocused ? undefined : state.run, follows: false });
}

// ---- The URL

function writeUrl() {
  const { run, note, focus, tab, isFlame, color, search } = state;
  const fields = {
    run,
    note: note === undefined ? undefined : String(note),
    focus,
    tab: tab > 0 ? String(tab + 1) : undefined,
    view: isFlame ? "flame" : undefined,
    color: color === "kind" ? undefined : color,
    find: search.text,
    kind: search.kind,
    outcome: search.outcome,
    longer: search.longer ? String(search.longer) : undefined,
    tokens: search.tokens ? String(search.tokens) : undefined,
    hides: search.hides ? "1" : undefined,
  };
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(fields)) if (value) parameters.set(name, value);
  history.replaceState(null, "", `#${parameters}`);
}

function readUrl() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const text = (/** @type {string} */ name) => parameters.get(name) ?? undefined;
  const number = (/** @type {string} */ name) => Math.max(0, Number(parameters.get(name)) || 0);
  state.run = text("run");
  state.note = number("note") || undefined;
  state.root = state.run;
  state.focus = text("focus");
  state.tab = Math.min(TABS.length, Math.max(1, Math.trunc(number("tab")))) - 1;
  state.isFlame = text("view") === "flame";
  state.color = ["kind", "outcome", "cost"].find((color) => color === text("color")) ?? "kind";
  state.search = new Search({
    text: text("find"),
    kind: text("kind"),
    outcome: text("outcome"),
    longer: number("longer"),
    tokens: number("tokens"),
    hides: text("hides") === "1",
  });
  if (state.run !== undefined || state.note !== undefined) {
    state.follows = false;
    state.isRevealing = true;
    state.revealed = -1;
  }
  writeSearch();
}
