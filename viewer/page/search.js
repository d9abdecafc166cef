// The search: what it finds, and its form.
"use strict";

/** The outcome of the search that selects all errors. */
const ALL_ERRORS = "errors";

/** What a person searches for. An empty field selects all runs. */
class Search {
  /** @param {{ text?: string, kind?: string, outcome?: string, longer?: number, tokens?: number, hides?: boolean }} fields */
  constructor({ text = "", kind = "", outcome = "", longer = 0, tokens = 0, hides = false } = {}) {
    this.text = text.toLowerCase();
    this.kind = kind;
    this.outcome = outcome;
    /** Milliseconds. */
    this.longer = longer;
    this.tokens = tokens;
    this.hides = hides;
  }

  get isEmpty() {
    return !this.text && !this.kind && !this.outcome && !this.longer && !this.tokens;
  }

  /** @param {Model} model @param {Run} run */
  matches(model, run) {
    if (this.kind && run.kind !== this.kind) return false;
    if (this.outcome === ALL_ERRORS ? !run.isError : this.outcome && model.outcomeOf(run) !== this.outcome) return false;
    if (this.longer && model.durationOf(run) <= this.longer * 1e6) return false;
    if (this.tokens && run.tokens <= this.tokens) return false;
    return !this.text || searchedText(model, run).includes(this.text);
  }

  /** The matching runs in the order of their first records. @param {Model} model */
  find(model) {
    return this.isEmpty ? [] : [...model.runs.values()].filter((run) => this.matches(model, run));
  }
}

/** The text of a run that a search looks at, made again when the run has further records. @param {Model} model @param {Run} run */
function searchedText(model, run) {
  if (run.searched?.count !== run.count) {
    const paths = model.headsOf(run).filter((head) => head.fact === "event" && !isOfTrajectory(head)).map((head) => head.path);
    const text = [`${run.kind} ${run.name}`, run.error, run.id, ...paths].join("\n").toLowerCase();
    run.searched = { count: run.count, text };
  }
  return run.searched.text;
}

/** Matches of the search, and what they were computed from. */
const found = { look: "", runs: /** @type {Run[]} */ ([]), ids: new Set(), kept: new Set() };

function updateFound() {
  const { search } = state;
  const look = `${model.version} ${JSON.stringify(search)}`;
  if (found.look === look) return;
  found.look = look;
  found.runs = search.find(model);
  found.ids = new Set(found.runs.map((run) => run.id));
  found.kept = new Set();
  for (const run of found.runs) {
    for (let above = /** @type {Run | undefined} */ (run); above && !found.kept.has(above); above = above.parent) found.kept.add(above);
  }
}

/** Returns `true` if a run stays in view: all do, unless the others of a search are hidden. @param {Run} run */
function isShown(run) {
  return !hidesOthers() || found.kept.has(run);
}

function hidesOthers() {
  return state.search.hides && !state.search.isEmpty;
}

function writeSearch() {
  const { text, outcome, longer, tokens, hides } = state.search;
  byId("find-text").value = text;
  byId("find-outcome").value = outcome;
  byId("find-longer").value = longer || "";
  byId("find-tokens").value = tokens || "";
  byId("find-hides").checked = hides;
}

function readSearch() {
  const search = new Search({
    text: byId("find-text").value,
    kind: byId("find-kind").value,
    outcome: byId("find-outcome").value,
    longer: Number(byId("find-longer").value),
    tokens: Number(byId("find-tokens").value),
    hides: byId("find-hides").checked,
  });
  change({ search });
}
