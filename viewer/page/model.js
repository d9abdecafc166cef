// The model of the page: heads of records, folded to runs. It knows nothing of the document, so node can test it.
"use strict";

/**
 * The head of a record, as `emitree_sinks::runs::Head` writes it.
 * @typedef {{
 *   at: number, number: number, fact: string, time?: number, run?: string, parent?: string, path?: string,
 *   kind?: string, name?: string, bytes: number, message?: string, outcome?: string | null, reason?: string,
 *   duration_ns?: number | null, input_tokens?: number, output_tokens?: number, cost?: string, lost?: number,
 * }} Head
 */

/** @typedef {{ recording: string, heads: Head[], end: boolean, incomplete: number }} Batch */

/**
 * A row of the tree: a run, or a note (a gap or a malformed line).
 * @typedef {{ run?: Run, note?: Note, level: number, position: number, size: number, isMatch?: boolean }} Row
 */

/** @typedef {{ head: Head, order: number }} Note */

/** A row of the list: a top-level run, or a note. @typedef {{ run?: Run, note?: Note }} Item */

/** Signs and words of outcomes: an outcome is never shown by its color alone. */
const OUTCOMES = {
  running: { sign: "▸", word: "running" },
  unfinished: { sign: "…", word: "unfinished" },
  success: { sign: "✓", word: "success" },
  failed: { sign: "✗", word: "failed" },
  panicked: { sign: "‼", word: "panicked" },
  denied: { sign: "⊘", word: "denied" },
  halted: { sign: "■", word: "halted" },
  aborted: { sign: "⨯", word: "aborted" },
  timed_out: { sign: "◔", word: "timed out" },
  interrupted: { sign: "?", word: "interrupted" },
  dropped: { sign: "⌀", word: "dropped" },
  unknown: { sign: "–", word: "unknown" },
  none: { sign: "·", word: "no run" },
};

/** Outcomes that `e` visits. */
const ERRORS = new Set(["failed", "panicked", "denied", "timed_out", "aborted", "dropped"]);

/** A run, folded from its heads. Times are microseconds since 1970, durations nanoseconds. */
class Run {
  /** @param {string} id @param {string | undefined} parentId @param {number} order */
  constructor(id, parentId, order) {
    this.id = id;
    this.parentId = parentId;
    /** The index of the first head of the run among all heads. */
    this.order = order;
    /** @type {Run | undefined} */
    this.parent = undefined;
    /** @type {Run[]} */
    this.children = [];
    /** @type {Head[]} */
    this.heads = [];
    this.kind = "";
    this.name = "";
    /** @type {number | undefined} */
    this.started = undefined;
    /** @type {number | undefined} */
    this.ended = undefined;
    /** @type {number | undefined} */
    this.duration = undefined;
    /** @type {string | undefined} */
    this.outcome = undefined;
    /** @type {string | undefined} */
    this.error = undefined;
    this.discarded = 0;
    /** Tokens and cost of the run itself. */
    this.own = { input: 0, output: 0, cost: 0, hasCost: false };
    /** Tokens and cost of the run and the runs below. */
    this.total = { input: 0, output: 0, cost: 0, hasCost: false };
    /** Until the end, the events that were lost before the run; then those that were lost during the run. */
    this.lost = 0;
    /** The index of the last head of the run among all heads. */
    this.last = order;
  }

  get tokens() {
    return this.total.input + this.total.output;
  }

  get isEnded() {
    return this.ended !== undefined;
  }

  get root() {
    /** @type {Run} */
    let run = this;
    while (run.parent) run = run.parent;
    return run;
  }
}

/** All runs of a recording. The cost of adding a head is constant, except that tokens are added to the runs above. */
class Model {
  /** @param {boolean} isLive */
  constructor(isLive) {
    this.isLive = isLive;
    this.clear();
  }

  clear() {
    this.recording = "";
    /** @type {Map<string, Run>} */
    this.runs = new Map();
    /** @type {Run[]} */
    this.roots = [];
    /** @type {Note[]} */
    this.notes = [];
    /** Events outside of runs, which are shown like a run. */
    this.outside = new Run("outside", undefined, 0);
    /** @type {Set<string>} */
    this.kinds = new Set();
    /** Runs whose parent has not been seen. @type {Map<string, Run[]>} */
    this.orphans = new Map();
    this.count = 0;
    /** The number of runs without an end. */
    this.open = 0;
    this.lost = 0;
    this.malformed = 0;
    this.incomplete = 0;
    this.isEnd = false;
    /** The time of the newest record. */
    this.now = 0;
    /** Grows with each change, so that a view knows what it has drawn. */
    this.version = 0;
  }

  /** @param {Batch} batch */
  add(batch) {
    if (batch.heads.length > 0) this.recording = batch.recording;
    for (const head of batch.heads) this.addHead(head);
    this.isEnd = batch.end;
    this.incomplete = batch.incomplete;
    this.version += 1;
  }

  /** @param {Head} head */
  addHead(head) {
    const order = this.count++;
    if (head.time !== undefined && head.time > this.now) this.now = head.time;
    if (head.fact === "gap" || head.fact === "malformed") {
      if (head.fact === "gap") this.lost += head.lost ?? 0;
      else this.malformed += 1;
      this.notes.push({ head, order });
      return;
    }
    if (head.run === undefined) {
      this.outside.heads.push(head);
      this.outside.last = order;
      return;
    }
    const run = this.runs.get(head.run) ?? this.newRun(head, order);
    run.heads.push(head);
    run.last = order;
    this.fold(run, head);
  }

  /** @param {Head} head @param {number} order @returns {Run} */
  newRun(head, order) {
    const id = /** @type {string} */ (head.run);
    const run = new Run(id, head.parent, order);
    run.lost = this.lost;
    this.open += 1;
    this.runs.set(id, run);
    const parent = head.parent === undefined ? undefined : this.runs.get(head.parent);
    if (parent) {
      run.parent = parent;
      parent.children.push(run);
    } else {
      this.roots.push(run);
      if (head.parent !== undefined) this.orphans.set(head.parent, [...(this.orphans.get(head.parent) ?? []), run]);
    }
    this.adopt(run);
    return run;
  }

  /** Moves runs below their parent, if its first event was recorded after theirs. @param {Run} parent */
  adopt(parent) {
    const children = this.orphans.get(parent.id);
    if (!children) return;
    this.orphans.delete(parent.id);
    const adopted = new Set(children);
    this.roots = this.roots.filter((root) => !adopted.has(root));
    for (const child of children) {
      child.parent = parent;
      parent.children.push(child);
      addUsage(parent, child.total);
    }
  }

  /** @param {Run} run @param {Head} head */
  fold(run, head) {
    switch (head.fact) {
      case "start":
        run.started = head.time;
        break;
      case "error":
        run.error = head.message;
        break;
      case "finish":
        if (run.isEnded) return;
        run.ended = head.time;
        this.open -= 1;
        run.duration = head.duration_ns ?? undefined;
        run.outcome = head.outcome ?? "unknown";
        run.lost = this.lost - run.lost;
        if (run.started === undefined && head.time !== undefined && run.duration !== undefined) {
          run.started = head.time - run.duration / 1000;
        }
        break;
      case "discarded":
        run.discarded += 1;
        return;
      case "usage": {
        const { input_tokens: input = 0, output_tokens: output = 0, cost } = head;
        const usage = { input, output, cost: Number(cost ?? 0), hasCost: cost !== undefined };
        addTo(run.own, usage);
        addUsage(run, usage);
        return;
      }
      case "success":
        break;
      default:
        return;
    }
    // Other events may have another creator than the run.
    run.kind = head.kind ?? "";
    run.name = head.name ?? "";
    this.kinds.add(run.kind);
  }

  /** @param {string | undefined} id @returns {Run | undefined} */
  get(id) {
    return id === this.outside.id ? this.outside : this.runs.get(id ?? "");
  }

  /** @param {Run} run @returns {keyof typeof OUTCOMES} */
  outcomeOf(run) {
    if (run === this.outside) return "none";
    if (!run.isEnded) return this.isLive ? "running" : "unfinished";
    return run.outcome !== undefined && run.outcome in OUTCOMES ? /** @type {any} */ (run.outcome) : "unknown";
  }

  /** The start of a run, or the time of its first record. @param {Run} run */
  startOf(run) {
    return run.started ?? run.heads[0]?.time ?? 0;
  }

  /** The end of a run. A run without an end lasts until the newest record. @param {Run} run */
  endOf(run) {
    return run.ended ?? Math.max(this.now, this.startOf(run));
  }

  /** The duration in nanoseconds. @param {Run} run */
  durationOf(run) {
    return run.duration ?? (this.endOf(run) - this.startOf(run)) * 1000;
  }

  /** The time in which no run below was under way, in nanoseconds. @param {Run} run */
  ownTimeOf(run) {
    const [start, end] = [this.startOf(run), this.endOf(run)];
    const below = run.children.map((child) => [this.startOf(child), this.endOf(child)]);
    below.sort((a, b) => a[0] - b[0]);
    let covered = 0;
    let until = start;
    for (const [from, to] of below) {
      const [begin, stop] = [Math.max(from, until), Math.min(to, end)];
      if (stop > begin) covered += stop - begin;
      until = Math.max(until, stop);
    }
    return Math.max(0, this.durationOf(run) - covered * 1000);
  }

  /** The number of events that were lost during a run. @param {Run} run */
  lostIn(run) {
    return run.isEnded ? run.lost : this.lost - run.lost;
  }

  /**
   * Top-level runs and notes: running ones first, then the others, newest first.
   * @returns {Item[]}
   */
  list() {
    /** @type {Item[]} */
    const running = [];
    /** @type {Item[]} */
    const others = [];
    let note = this.notes.length - 1;
    for (let at = this.roots.length - 1; at >= 0; at--) {
      const run = this.roots[at];
      while (note >= 0 && this.notes[note].order > run.order) others.push({ note: this.notes[note--] });
      (run.isEnded ? others : running).push({ run });
    }
    while (note >= 0) others.push({ note: this.notes[note--] });
    if (this.outside.heads.length > 0) others.push({ run: this.outside });
    return [...running, ...others];
  }

  /**
   * The rows of the tree of a run: the run, the runs below in the order of their first records, and the notes between
   * its first and last record.
   * @param {Run} top
   * @param {{ isOpen?: (run: Run) => boolean, isShown?: (run: Run) => boolean }} [options]
   * @returns {Row[]}
   */
  rows(top, { isOpen = () => true, isShown = () => true } = {}) {
    /** @type {Row[]} */
    const rows = [{ run: top, level: 1, position: 1, size: 1 }];
    if (!isOpen(top)) return rows;
    const until = top.isEnded ? top.last : Infinity;
    const notes = this.notes.filter((note) => note.order > top.order && note.order < until).map((note) => ({ note }));
    const first = [...top.children.filter(isShown).map((run) => ({ run })), ...notes];
    if (notes.length > 0) first.sort((a, b) => orderOf(a) - orderOf(b));
    /** @type {Row[]} */
    const stack = rowsOf(first, 2).reverse();
    while (stack.length > 0) {
      const row = /** @type {Row} */ (stack.pop());
      rows.push(row);
      if (!row.run || row.run.children.length === 0 || !isOpen(row.run)) continue;
      const below = row.run.children.filter(isShown).map((run) => ({ run }));
      const next = rowsOf(below, row.level + 1);
      for (let at = next.length - 1; at >= 0; at--) stack.push(next[at]);
    }
    return rows;
  }

  /**
   * Boxes of a flame view: each run is at least one row below its parent, and overlaps no other run of its row.
   * @param {Run} top
   * @returns {{ run: Run, row: number, start: number, end: number }[]}
   */
  boxes(top) {
    const runs = this.rows(top).flatMap(({ run }) => (run ? [run] : []));
    runs.sort((a, b) => this.startOf(a) - this.startOf(b) || a.order - b.order);
    /** The end of the last run of each row. @type {number[]} */
    const ends = [];
    /** @type {Map<Run, number>} */
    const rowOf = new Map();
    return runs.map((run) => {
      const [start, end] = [this.startOf(run), this.endOf(run)];
      let row = run === top || !run.parent ? 0 : (rowOf.get(run.parent) ?? 0) + 1;
      // A view of more rows could not be read: further runs overlap in the last row.
      while (row < 200 && (ends[row] ?? 0) > start) row += 1;
      ends[row] = Math.max(ends[row] ?? 0, end);
      rowOf.set(run, row);
      return { run, row, start, end };
    });
  }
}

/** @param {Item[]} items @param {number} level @returns {Row[]} */
function rowsOf(items, level) {
  return items.map((item, index) => ({ ...item, level, position: index + 1, size: items.length }));
}

/** @param {Item} item */
function orderOf(item) {
  return item.run ? item.run.order : /** @type {Note} */ (item.note).order;
}

/** @typedef {{ input: number, output: number, cost: number, hasCost: boolean }} Usage */

/** @param {Usage} to @param {Usage} usage */
function addTo(to, usage) {
  to.input += usage.input;
  to.output += usage.output;
  to.cost += usage.cost;
  to.hasCost ||= usage.hasCost;
}

/** Adds a usage to the totals of a run and of all runs above. @param {Run} run @param {Usage} usage */
function addUsage(run, usage) {
  for (/** @type {Run | undefined} */ let above = run; above; above = above.parent) addTo(above.total, usage);
}

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
    if (this.outcome && model.outcomeOf(run) !== this.outcome) return false;
    if (this.longer && model.durationOf(run) <= this.longer * 1e6) return false;
    if (this.tokens && run.tokens <= this.tokens) return false;
    return !this.text || textsOf(run).some((text) => text.toLowerCase().includes(this.text));
  }

  /** The matching runs in the order of their first records. @param {Model} model */
  find(model) {
    return this.isEmpty ? [] : [...model.runs.values()].filter((run) => this.matches(model, run));
  }
}

/** The texts of a run that a search looks at. @param {Run} run */
function textsOf(run) {
  const paths = run.heads.filter((head) => head.fact === "event" && !isOfTrajectory(head)).map((head) => head.path ?? "");
  return [`${run.kind} ${run.name}`, run.error ?? "", run.id, ...paths];
}

/** @param {number} nanoseconds */
function formatDuration(nanoseconds) {
  // The limits are those of rounding: 999,600 ns are not "1000 µs".
  if (nanoseconds < 999.5) return `${Math.round(nanoseconds)} ns`;
  if (nanoseconds < 999.5e3) return `${threeDigits(nanoseconds / 1e3)} µs`;
  if (nanoseconds < 999.5e6) return `${threeDigits(nanoseconds / 1e6)} ms`;
  if (nanoseconds < 59.95e9) return `${threeDigits(nanoseconds / 1e9)} s`;
  const seconds = Math.round(nanoseconds / 1e9);
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours > 0 ? `${hours} h ${minutes} min` : `${minutes} min ${seconds % 60} s`;
}

/** @param {number} number */
function threeDigits(number) {
  return number >= 99.95 ? number.toFixed(0) : number >= 9.995 ? number.toFixed(1) : number.toFixed(2);
}

/** @param {number} number */
function formatCount(number) {
  return number.toLocaleString("en-US");
}

/** Cost in the unit of the recording, without the errors of binary fractions. @param {number} cost */
function formatCost(cost) {
  return String(Number(cost.toFixed(9)));
}

/** @param {number} bytes */
function formatBytes(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${threeDigits(bytes / 1e3)} kB` : `${threeDigits(bytes / 1e6)} MB`;
}

/** The date and time of a record, in the time zone of the reader. @param {number} microseconds */
function formatTime(microseconds) {
  const date = new Date(microseconds / 1000);
  const two = (/** @type {number} */ number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const millis = String(date.getMilliseconds()).padStart(3, "0");
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${millis}`;
}

/** Events of a trajectory repeat other events, so they are hidden unless asked for. @param {Head} head */
function isOfTrajectory(head) {
  return (head.path ?? "").startsWith("middleware.trajectory.");
}

/** The text of a note. @param {Note} note */
function textOfNote({ head }) {
  if (head.fact === "gap") return `${formatCount(head.lost ?? 0)} events were lost here`;
  return head.reason ?? "";
}

/** The text of a run in a list. @param {Run} run */
function titleOf(run) {
  if (run.id === "outside") return "events outside of runs";
  return run.name ? `${run.kind} ${run.name}` : `run ${run.id.slice(0, 8)} (start not recorded)`;
}
