// The keys, and the events of the page.
"use strict";

/** @type {[string, string, () => void][]} */
const KEYS = [
  ["/", "find", () => byId("find-text").focus()],
  ["n", "next match", () => visitNext(found.runs, 1)],
  ["N", "previous match", () => visitNext(found.runs, -1)],
  ["e", "next error", () => visitError(1)],
  ["E", "previous error", () => visitError(-1)],
  ["t", "tree or flame view", () => change({ isFlame: !state.isFlame })],
  ["f", "follow the newest run", () => model.isLive && change({ follows: !state.follows })],
  ["z", "only the selected run and the runs below", () => focusSelected()],
  ["c", "copy what the tab shows as JSON", () => copy()],
  ["?", "this list", () => byId("help").showModal()],
  ...TABS.map((name, index) => /** @type {any} */ ([String(index + 1), name, () => change({ tab: index })])),
];

async function copy() {
  const text = await tabs.copied(model, model.get(state.run), state.tab);
  try {
    await navigator.clipboard.writeText(text);
    announce("copied");
  } catch (error) {
    announce(`could not copy: ${error.message}`);
  }
}

/** @param {string} text */
function announce(text) {
  setText(byId("announcement"), text);
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (target.matches("input, select")) {
    if (event.key === "Escape") byId("tree").focus();
    return;
  }
  const key = KEYS.find(([name]) => name === event.key);
  if (key) key[2]();
  else if (!moveBy(event.key, target)) return;
  event.preventDefault();
}

/** Moves the selection of the list that has the focus. Returns `false` for other keys. @param {string} key @param {HTMLElement} target */
function moveBy(key, target) {
  if (target.id === "runs") return moveIn(list, list.rows.findIndex(({ run }) => run !== undefined && run === shownRoot()), key);
  if (target.id === "flame") return moveInFlame(key);
  if (target.id !== "tree" && target !== document.body) return false;
  if (state.isFlame) return moveInFlame(key);
  const index = indexOfSelected(tree.rows);
  const row = tree.rows[index];
  if (row?.run && (key === "ArrowLeft" || key === "ArrowRight")) return openOrClose(row.run, key === "ArrowRight");
  return moveIn(tree, index, key);
}

/** @param {VirtualList<any>} view @param {number} index @param {string} key */
function moveIn(view, index, key) {
  const last = view.rows.length - 1;
  /** @type {Record<string, number>} */
  const steps = { ArrowUp: index - 1, ArrowDown: index + 1, Home: 0, End: last, PageUp: index - view.page, PageDown: index + view.page };
  if (!(key in steps) || last < 0) return false;
  const to = Math.min(last, Math.max(0, steps[key]));
  select(view.rows[to]);
  view.show(to);
  return true;
}

/** @param {Run} run @param {boolean} opens */
function openOrClose(run, opens) {
  const isOpen = run.children.length > 0 && !state.closed.has(run.id);
  if (isOpen !== opens && run.children.length > 0) toggle(run);
  else if (opens && isOpen) visit(run.children.find(isShown) ?? run);
  else if (!opens && run.parent && run !== shown.run) visit(run.parent);
  return true;
}

/** In the flame view, up and down go to the run above and the first below, left and right to the neighbours. @param {string} key */
function moveInFlame(key) {
  const run = model.get(state.run) ?? shown.run;
  if (!run) return false;
  const beside = run === shown.run ? [run] : (run.parent?.children ?? [run]).filter(isShown);
  const at = beside.indexOf(run);
  /** @type {Record<string, Run>} */
  const steps = {
    ArrowUp: run === shown.run ? run : (run.parent ?? run),
    ArrowDown: run.children.find(isShown) ?? run,
    ArrowLeft: beside[at - 1] ?? run,
    ArrowRight: beside[at + 1] ?? run,
    Home: shown.run,
    End: beside[beside.length - 1],
  };
  if (!(key in steps)) return false;
  visit(steps[key]);
  return true;
}

function listen() {
  const outcomes = Object.entries(OUTCOMES).map(([name, { word }]) => make("option", { value: name }, [word]));
  byId("find-outcome").append(make("option", { value: ALL_ERRORS }, ["all errors"]), ...outcomes);
  byId("keys").append(
    ...[["Arrows, Home, End, page keys", "move in a list, open and close"], ...KEYS].flatMap(([key, text]) => [
      make("dt", {}, [make("kbd", {}, [String(key)])]),
      make("dd", {}, [String(text)]),
    ]),
  );
  byId("find").addEventListener("input", readSearch);
  byId("find").addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    visitNext(found.runs, 1);
  });
  byId("find-next").addEventListener("click", () => visitNext(found.runs, 1));
  byId("find-previous").addEventListener("click", () => visitNext(found.runs, -1));
  byId("follow").addEventListener("click", () => change({ follows: !state.follows }));
  byId("focus").addEventListener("click", focusSelected);
  byId("flame-switch").addEventListener("click", () => change({ isFlame: !state.isFlame }));
  byId("color").addEventListener("change", () => change({ color: byId("color").value }));
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  document.addEventListener("keydown", onKey);
  for (const name of ["wheel", "touchmove"]) {
    byId("middle").addEventListener(name, () => state.follows && change({ follows: false }), { passive: true });
  }
  for (const id of ["tree", "flame"]) {
    // The list itself is pressed only beside its rows, such as on its scroll bar.
    byId(id).addEventListener("pointerdown", (/** @type {Event} */ event) => {
      if (event.target === byId(id) && state.follows) change({ follows: false });
    });
  }
  window.addEventListener("hashchange", () => {
    // The address of a server that was started again, opened in this tab.
    if (model.isLive && takeToken()) follow();
    readUrl();
    schedule();
  });
  window.addEventListener("resize", schedule);
}
