// The model of the page: heads of records, folded to runs. It knows nothing of the document, so node can test it.
"use strict";

/**
 * The head of a record, as `emitree_sinks::runs::Head` writes it.
 * @typedef {{
 *   at: number, number: number, fact: string, time?: number, run?: string, parent?: string, path?: string,
 *   kind?: string, name?: string, bytes: number, message?: string, outcome?: string | null, reason?: string,
 *   duration_ns?: number | null, input_tokens?: number, output_tokens?: number, cost?: string, estimated?: boolean, lost?: number,
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

/** The outcomes that are errors: `e` visits them, *all errors* selects them, and the runs above count them. */
const ERRORS = new Set(["failed", "panicked", "denied", "timed_out", "aborted"]);

/** @typedef {Readonly<{ input: number, output: number, cost: number, hasCost: boolean, isEstimated: boolean }>} Usage */

/** Shared by all runs without usage, because most runs have none. @type {Usage} */
const NO_USAGE = { input: 0, output: 0, cost: 0, hasCost: false, isEstimated: false };

/** Shared by all runs without runs below. @type {Run[]} */
const NO_RUNS = [];

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
    /** `true` if the recorded parent is the run itself or a run below it, so the run is shown as a top-level run. */
    this.isInCycle = false;
    this.children = NO_RUNS;
    /** The number of heads of the run. */
    this.count = 0;
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
    /** The number of runs below that ended with an error. */
    this.errorsBelow = 0;
    /** Tokens and cost of the run and the runs below. */
    this.total = NO_USAGE;
    /** Until the end, the events that were lost before the run; then those that were lost during the run. */
    this.lost = 0;
    /** The index of the last head of the run among all heads. */
    this.last = order;
    /** What a search has looked at. @type {{ count: number, text: string } | undefined} */
    this.searched = undefined;
  }

  get tokens() {
    return this.total.input + this.total.output;
  }

  get isEnded() {
    return this.ended !== undefined;
  }

  get isError() {
    return this.outcome !== undefined && ERRORS.has(this.outcome);
  }

  get root() {
    /** @type {Run} */
    let run = this;
    while (run.parent) run = run.parent;
    return run;
  }
}

/** All runs of a recording. The cost of adding a head is constant, except that tokens and errors are added to the runs above. */
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
    this.outside = new Run("outside", undefined, -1);
    /** All heads. The heads of a run are a list by index, because an array for each run would take most of the time. */
    this.heads = /** @type {Head[]} */ ([]);
    /** The index of the next head of the same run. */
    this.next = /** @type {number[]} */ ([]);
    /** The kinds of runs, numbered in the order of their first records. @type {Map<string, number>} */
    this.kinds = new Map();
    /** Runs whose parent has not been seen. @type {Map<string, Run[]>} */
    this.orphans = new Map();
    this.count = 0;
    /** The run that was the first to end with an error: if it made others fail, these have ended after it. @type {Run | undefined} */
    this.firstError = undefined;
    /** The number of runs without an end. */
    this.open = 0;
    this.lost = 0;
    /** The number of runs whose recorded parents form a cycle. */
    this.cycles = 0;
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
    this.heads.push(head);
    this.next.push(-1);
    if (head.time !== undefined && head.time > this.now) this.now = head.time;
    if (head.fact === "gap" || head.fact === "malformed") {
      if (head.fact === "gap") this.lost += head.lost ?? 0;
      else this.malformed += 1;
      this.notes.push({ head, order });
      return;
    }
    if (head.run === undefined) {
      this.link(this.outside, order);
      return;
    }
    const run = this.runs.get(head.run) ?? this.newRun(head, order);
    this.link(run, order);
    this.fold(run, head);
  }

  /** Adds a head to those of a run. @param {Run} run @param {number} order */
  link(run, order) {
    if (run.count === 0) run.order = order;
    else this.next[run.last] = order;
    run.last = order;
    run.count += 1;
  }

  /** The heads of a run, in order. @param {Run} run */
  headsOf(run) {
    const heads = [];
    for (let at = run.count === 0 ? -1 : run.order; at >= 0; at = this.next[at]) heads.push(this.heads[at]);
    return heads;
  }

  /** @param {Head} head @param {number} order @returns {Run} */
  newRun(head, order) {
    const id = /** @type {string} */ (head.run);
    const run = new Run(id, head.parent, order);
    run.lost = this.lost;
    this.open += 1;
    this.runs.set(id, run);
    const parent = head.parent === undefined ? undefined : this.runs.get(head.parent);
    if (parent && parent !== run) {
      run.parent = parent;
      addChild(parent, run);
    } else {
      this.roots.push(run);
      if (parent) this.markCycle(run);
      else if (head.parent !== undefined) this.orphans.set(head.parent, [...(this.orphans.get(head.parent) ?? []), run]);
    }
    this.adopt(run);
    return run;
  }

  /** @param {Run} run */
  markCycle(run) {
    run.isInCycle = true;
    this.cycles += 1;
  }

  /** Moves runs below their parent, if its first event was recorded after theirs. @param {Run} parent */
  adopt(parent) {
    const children = this.orphans.get(parent.id);
    if (!children) return;
    this.orphans.delete(parent.id);
    // Orphans are top-level runs, so the only one that can be above the parent is its root. Below it, it would close a
    // cycle, in which no walk to the top would end.
    const root = parent.root;
    const adopted = new Set(children);
    if (adopted.delete(root)) this.markCycle(root);
    this.roots = this.roots.filter((root) => !adopted.has(root));
    for (const child of adopted) {
      child.parent = parent;
      addChild(parent, child);
      addUsage(parent, child.total);
      addErrors(parent, child.errorsBelow + (child.isError ? 1 : 0));
    }
  }

  /** @param {Run} run @param {Head} head */
  fold(run, head) {
    switch (head.fact) {
      case "start":
        run.started ??= head.time;
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
        if (run.isError) {
          this.firstError ??= run;
          addErrors(run.parent, 1);
        }
        run.lost = this.lost - run.lost;
        if (head.time !== undefined && run.duration !== undefined) {
          // Whatever waits before a run's `start` is part of its duration, so `start` may be recorded late, or not at
          // all. `finish` may be recorded late too. The bar always has the length of the duration.
          const began = head.time - run.duration / 1000;
          run.started = Math.min(run.started ?? began, began);
          run.ended = run.started + run.duration / 1000;
        }
        break;
      case "discarded":
        run.discarded += 1;
        return;
      case "usage": {
        const { input_tokens: input = 0, output_tokens: output = 0, cost, estimated: isEstimated = false } = head;
        const usage = { input, output, cost: Number(cost ?? 0), hasCost: cost !== undefined, isEstimated };
        addUsage(run, usage);
        return;
      }
      case "success":
        break;
      default:
        return;
    }
    // Other events may have another creator than the run.
    run.name = head.name ?? "";
    if (run.kind === head.kind) return;
    run.kind = head.kind ?? "";
    if (!this.kinds.has(run.kind)) this.kinds.set(run.kind, this.kinds.size);
  }

  /** @param {string | undefined} id @returns {Run | undefined} */
  get(id) {
    return id === this.outside.id ? this.outside : this.runs.get(id ?? "");
  }

  /** @param {Run} run @returns {keyof typeof OUTCOMES} */
  outcomeOf(run) {
    if (run === this.outside) return "none";
    if (!run.isEnded) return this.isLive ? "running" : "unfinished";
    return run.outcome !== undefined && Object.hasOwn(OUTCOMES, run.outcome) ? /** @type {any} */ (run.outcome) : "unknown";
  }

  /** The start of a run, or the time of its first record. @param {Run} run */
  startOf(run) {
    return run.started ?? this.heads[run.order]?.time ?? 0;
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
    if (this.outside.count > 0) others.push({ run: this.outside });
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
   * @param {Run} top @param {(run: Run) => boolean} [isShown]
   * @returns {{ run: Run, row: number, start: number, end: number }[]}
   */
  boxes(top, isShown) {
    const runs = this.rows(top, { isShown }).flatMap(({ run }) => (run ? [run] : []));
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

/** @param {Run} parent @param {Run} child */
function addChild(parent, child) {
  if (parent.children === NO_RUNS) parent.children = [child];
  else parent.children.push(child);
}

/** @param {Usage} a @param {Usage} b @returns {Usage} */
function sum(a, b) {
  return {
    input: a.input + b.input,
    output: a.output + b.output,
    cost: a.cost + b.cost,
    hasCost: a.hasCost || b.hasCost,
    isEstimated: a.isEstimated || b.isEstimated,
  };
}

/** Adds a usage to the totals of a run and of all runs above. @param {Run} run @param {Usage} usage */
function addUsage(run, usage) {
  for (/** @type {Run | undefined} */ let above = run; above; above = above.parent) above.total = sum(above.total, usage);
}

/** Adds errors to the counts of a run and of all runs above. @param {Run | undefined} run @param {number} count */
function addErrors(run, count) {
  if (count > 0) for (let above = run; above; above = above.parent) above.errorsBelow += count;
}

/** Events of a trajectory repeat other events, so they are hidden unless asked for. @param {Head} head */
function isOfTrajectory(head) {
  return (head.path ?? "").startsWith("middleware.trajectory.");
}
