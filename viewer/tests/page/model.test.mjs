// The model of the page, without a document.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import vm from "node:vm";

const files = ["model.js", "format.js", "search.js"].map((name) => new URL(`../../page/${name}`, import.meta.url));
const source = files.map((file) => readFileSync(file, "utf8")).join("");
const names = ["Model", "Search", "parentOf", "formatDuration", "formatCost", "formatBytes", "textOfNote", "titleOf", "usageOf", "visible"];
const page = vm.runInThisContext(`(() => {${source}\nreturn {${names}};})()`);

const S = 1e6;
let at = 0;
function head(fact, run, second, more = {}) {
  at += 1;
  return { at, number: at, fact, run, time: second * S, path: `x.${fact}`, kind: "Tool", name: run, bytes: 2, ...more };
}
const start = (run, second, parent) => head("start", run, second, { parent });
const finish = (run, second, duration, outcome = "success", parent = undefined) =>
  head("finish", run, second, { parent, outcome, duration_ns: duration * 1e9 });
const gap = (lost) => ({ at: ++at, number: at, fact: "gap", lost, bytes: 0 });

function modelOf(heads, isLive = true) {
  const model = new page.Model(isLive);
  model.add({ recording: "r", heads, end: true, incomplete: 0 });
  return model;
}

const shape = (model, id, options) =>
  model.rows(model.runs.get(id), options).map(({ run, note, level, position, size }) => `${level} ${run ? run.id : page.textOfNote(note)} ${position}/${size}`);

test("a tree has the runs in the order of their first records, and the gaps between them", () => {
  const heads = [start("a", 0), start("b", 1, "a"), start("c", 2, "b"), finish("c", 3, 1), finish("b", 4, 3), gap(5), start("d", 5, "a")];
  assert.deepEqual(shape(modelOf(heads), "a"), ["1 a 1/1", "2 b 1/3", "3 c 1/1", "2 5 events were lost here 2/3", "2 d 3/3"]);
});

test("a gap before the first or after the last record of a run is not in its tree", () => {
  const heads = [gap(1), start("a", 0), finish("a", 1, 1), gap(2)];
  assert.deepEqual(shape(modelOf(heads), "a"), ["1 a 1/1"]);
});

test("a run whose parent is recorded later moves below it, with its tokens", () => {
  const usage = head("usage", "b", 1, { parent: "a", input_tokens: 3, output_tokens: 4 });
  const model = modelOf([usage, start("a", 2), head("event", "c", 3, { parent: "b" })]);
  assert.deepEqual(shape(model, "a"), ["1 a 1/1", "2 b 1/1", "3 c 1/1"]);
  assert.deepEqual([model.roots.length, model.runs.get("a").tokens, model.runs.get("c").tokens], [1, 7, 0]);
});

test("runs that are each other's parents are shown, and one of them is a marked top-level run", () => {
  const usage = (run, parent) => head("usage", run, 1, { parent, input_tokens: 3, output_tokens: 4 });
  // The parent of each run, in the order of the records.
  const cases = [
    [{ a: "a" }, ["1 a 1/1"]],
    [{ a: "b", b: "a" }, ["1 a 1/1", "2 b 1/1"]],
    [{ a: "b", b: "c", c: "a" }, ["1 b 1/1", "2 a 1/1", "3 c 1/1"]],
    [{ a: "c", b: "a", c: "b" }, ["1 a 1/1", "2 b 1/1", "3 c 1/1"]],
    [{ a: "b", d: "b", b: "a" }, ["1 a 1/1", "2 b 1/1", "3 d 1/1"]],
  ];
  for (const [parents, expected] of cases) {
    const heads = Object.entries(parents).map(([run, parent]) => usage(run, parent));
    const model = modelOf(heads);
    const [top, ...others] = model.roots;
    assert.deepEqual([shape(model, top.id), others], [expected, []]);
    assert.equal(top.tokens, heads.length * 7);
    assert.deepEqual([...model.runs.values()].filter((run) => run.isInCycle), [top]);
    assert.equal(model.cycles, 1);
    assert.deepEqual(page.parentOf(top), [["Parent", `${parents[top.id]} (⚠ a cycle: this run is also above its parent)`]]);
    assert.equal(model.boxes(top).length, heads.length);
  }
});

test("a closed run and a run that is not shown have no rows below", () => {
  const model = modelOf([start("a", 0), start("b", 1, "a"), start("c", 2, "b"), start("d", 3, "a")]);
  assert.deepEqual(shape(model, "a", { isOpen: (run) => run.id !== "b" }), ["1 a 1/1", "2 b 1/2", "2 d 2/2"]);
  assert.deepEqual(shape(model, "a", { isShown: (run) => run.id !== "b" }), ["1 a 1/1", "2 d 1/1"]);
});

test("a run is named with its parent, which may be a span of another process", () => {
  const [unknown, span] = ["01a220e5-886a-7301-a57c-a8c375892796", "00000000-0000-0000-00f0-67aa0ba902b7"];
  const model = modelOf([start("a", 0), start("b", 1, "a"), start("c", 2, unknown), start("d", 3, span), start("e", 3, span)]);
  const record = { trace: { id: "4bf92f35-77b3-4da6-a3ce-929d0e0e4736" } };
  const parent = (id, record) => page.parentOf(model.runs.get(id), record);
  assert.deepEqual(["a", "b", "c"].map((id) => parent(id)), [[], [["Parent", "Tool a"]], [["Parent", `${unknown} (not recorded)`]]]);
  const expected = "trace 4bf92f3577b34da6a3ce929d0e0e4736, span 00f067aa0ba902b7";
  assert.deepEqual(["d", "e"].map((id) => parent(id, record)), [[["Continues", expected]], [["Continues", expected]]]);
  assert.deepEqual(model.roots.map((run) => run.id), ["a", "c", "d", "e"]);
});

test("batches of any size make the same model", () => {
  const heads = [start("a", 0), start("b", 1, "a"), gap(2), finish("b", 2, 1, "failed", "a"), finish("a", 3, 3)];
  const whole = modelOf(heads);
  const parts = new page.Model(true);
  for (const one of heads) parts.add({ recording: "r", heads: [one], end: false, incomplete: 0 });
  const facts = (model) => [...model.runs.values()].map((run) => [run.id, model.outcomeOf(run), model.durationOf(run), model.lostIn(run)]);
  assert.deepEqual(facts(parts), facts(whole));
  assert.deepEqual(facts(whole), [["a", "success", 3e9, 2], ["b", "failed", 1e9, 2]]);
});

test("the list has running runs first, then the newest, with gaps where they were recorded", () => {
  const heads = [start("a", 0), start("b", 1), finish("b", 2, 1), gap(4), start("c", 3), finish("c", 4, 1)];
  const list = modelOf(heads).list().map(({ run, note }) => (run ? run.id : note.head.lost));
  assert.deepEqual(list, ["a", "c", 4, "b"]);
});

test("a run without an end is running in a live page and unfinished in an exported one", () => {
  assert.equal(modelOf([start("a", 0)]).outcomeOf({ isEnded: false }), "running");
  assert.equal(modelOf([start("a", 0)], false).outcomeOf({ isEnded: false }), "unfinished");
});

test("an outcome that the page does not know is unknown", () => {
  for (const outcome of ["exploded", "constructor", "__proto__", "", null]) {
    const model = modelOf([start("a", 0), finish("a", 1, 1, outcome)]);
    assert.equal(model.outcomeOf(model.runs.get("a")), "unknown");
  }
});

test("a run whose start was lost begins at its end minus its duration", () => {
  const model = modelOf([finish("a", 9, 8)]);
  assert.equal(model.startOf(model.runs.get("a")), 1 * S);
});

test("the bar of a run is as long as its duration, also if its start or its end was recorded late", () => {
  // The seconds of `start` and `finish`, the duration, and the beginning and the end of the bar.
  for (const [started, ended, duration, from, to] of [[4, 9, 8, 1, 9], [1, 9, 8, 1, 9], [1, 9, 5, 1, 6], [9, 9, 0, 9, 9]]) {
    const model = modelOf([start("a", started), finish("a", ended, duration)]);
    const run = model.runs.get("a");
    assert.deepEqual([model.startOf(run), model.endOf(run), run.started], [from * S, to * S, from * S]);
    assert.equal(model.durationOf(run), duration * 1e9);
    assert.equal(model.ownTimeOf(run), duration * 1e9);
  }
});

test("the own time of a run leaves out the time of the runs below, once if they overlap", () => {
  const below = [start("b", 1, "a"), start("c", 2, "a"), finish("b", 4, 3, "success", "a"), finish("c", 5, 3, "success", "a")];
  const model = modelOf([start("a", 0), ...below, start("d", 8, "a"), finish("d", 9, 1, "success", "a"), finish("a", 10, 10)]);
  assert.equal(model.ownTimeOf(model.runs.get("a")), (10 - 4 - 1) * 1e9);
});

test("no two boxes of one row of a flame view overlap, and each is below its parent", () => {
  const heads = [start("top", 0)];
  for (let n = 0; n < 200; n++) {
    const parent = n % 3 === 0 ? "top" : `r${n - (n % 3)}`;
    heads.push(start(`r${n}`, n * 0.5, parent));
    heads.push(finish(`r${n}`, n * 0.5 + 1 + (n % 7), 1 + (n % 7), "success", parent));
  }
  heads.push(finish("top", 400, 400));
  const model = modelOf(heads);
  const placed = model.boxes(model.runs.get("top"));
  assert.equal(placed.length, 201);
  const rowOf = new Map(placed.map(({ run, row }) => [run, row]));
  for (const box of placed) {
    if (box.run.parent) assert.ok(box.row > rowOf.get(box.run.parent), box.run.id);
    const others = placed.filter((other) => other !== box && other.row === box.row);
    for (const other of others) assert.ok(other.end <= box.start || box.end <= other.start, `${box.run.id} and ${other.run.id}`);
  }
});

test("a search finds runs by text, kind, outcome, duration and tokens", () => {
  const error = head("error", "b", 1, { parent: "a", message: "The DISK is full" });
  const usage = head("usage", "a", 1, { input_tokens: 60, output_tokens: 40 });
  const own = head("event", "c", 2, { parent: "a", path: "tool.c.progress" });
  const heads = [start("a", 0), usage, start("b", 1, "a"), error, finish("b", 2, 1, "failed", "a"), start("c", 2, "a"), own];
  heads.push(finish("c", 5, 3, "success", "a"), finish("a", 9, 9, "success"));
  const model = modelOf(heads);
  const found = (fields) => new page.Search(fields).find(model).map((run) => run.id).join("");
  assert.equal(found({}), "");
  assert.equal(found({ text: "disk" }), "b");
  assert.equal(found({ text: "PROGRESS" }), "c");
  assert.equal(found({ text: "tool c" }), "c");
  assert.equal(found({ kind: "Tool" }), "abc");
  assert.equal(found({ kind: "Agent" }), "");
  assert.equal(found({ outcome: "failed" }), "b");
  assert.equal(found({ longer: 1000 }), "ac");
  assert.equal(found({ tokens: 99 }), "a");
  assert.equal(found({ tokens: 100 }), "");
  assert.equal(found({ outcome: "success", longer: 3000 }), "a");
  model.add({ recording: "r", heads: [head("event", "b", 9, { path: "tool.b.progress" })], end: true, incomplete: 0 });
  assert.equal(found({ text: "PROGRESS" }), "bc");
  const trajectory = head("event", "a", 9, { path: "middleware.trajectory.progress" });
  model.add({ recording: "r", heads: [trajectory], end: true, incomplete: 0 });
  assert.equal(found({ text: "PROGRESS" }), "bc");
});

test("all errors is a filter: failed, timed out, panicked, aborted and denied runs", () => {
  const outcomes = ["success", "failed", "timed_out", "panicked", "aborted", "denied", "halted", "interrupted", "dropped", "exploded"];
  const model = modelOf([...outcomes.flatMap((outcome, at) => [start(outcome, at), finish(outcome, at, 1, outcome)]), start("running", 99)]);
  const found = new page.Search({ outcome: "errors" }).find(model).map((run) => run.id);
  assert.deepEqual(found, ["failed", "timed_out", "panicked", "aborted", "denied"]);
});

test("errors are counted on the runs above, in any order of the records", () => {
  const heads = [start("a", 0), start("b", 1, "a"), start("c", 2, "b"), finish("c", 3, 1, "failed", "b"), start("d", 3, "b")];
  heads.push(finish("d", 4, 1, "denied", "b"), finish("b", 5, 4, "failed", "a"), finish("a", 6, 6, "success"));
  const counts = (model) => ["a", "b", "c", "d"].map((run) => model.runs.get(run).errorsBelow);
  assert.deepEqual(counts(modelOf(heads)), [3, 2, 0, 0]);
  // The runs above are recorded later.
  const late = modelOf([...heads.slice(2), heads[0], heads[1]]);
  assert.deepEqual(counts(late), [3, 2, 0, 0]);
  assert.equal(late.firstError.id, "c");
});

test("the flame view has no boxes of runs that the filter hides", () => {
  const model = modelOf([start("a", 0), start("b", 1, "a"), start("c", 2, "b"), start("d", 3, "a")]);
  const boxes = model.boxes(model.runs.get("a"), (run) => run.id !== "b");
  assert.deepEqual(boxes.map(({ run }) => run.id), ["a", "d"]);
});

test("characters that reverse or reorder text are shown as escapes", () => {
  assert.equal(page.visible("a\u202eb\u2066c\u200fd\u061ce"), "a\\u202eb\\u2066c\\u200fd\\u061ce");
  assert.equal(page.visible("naïve 日本 עברית 👩‍🚀"), "naïve 日本 עברית 👩‍🚀");
});

test("an estimated usage is marked, also in the sums above", () => {
  const usage = (run, parent, more) => head("usage", run, 1, { parent, input_tokens: 1000, output_tokens: 234, cost: "0.5", ...more });
  const model = modelOf([usage("a", undefined, {}), usage("b", "a", { estimated: true }), usage("c", "a", {})]);
  const texts = ["a", "b", "c"].map((run) => page.usageOf(model.runs.get(run)));
  assert.deepEqual(texts, [["~3,702 tokens", "cost ~1.5"], ["~1,234 tokens", "cost ~0.5"], ["1,234 tokens", "cost 0.5"]]);
});

test("durations, costs and sizes have three digits and a unit", () => {
  const durations = [[0, "0 ns"], [999, "999 ns"], [1500, "1.50 µs"], [999_600, "1.00 ms"], [9_996, "10.0 µs"], [12_345_678, "12.3 ms"], [59.94e9, "59.9 s"], [61e9, "1 min 1 s"], [3_720e9, "1 h 2 min"]];
  for (const [nanoseconds, text] of durations) assert.equal(page.formatDuration(nanoseconds), text);
  assert.equal(page.formatCost(0.1 + 0.2), "0.3");
  assert.deepEqual([999, 1000, 1_234_567].map(page.formatBytes), ["999 B", "1.00 kB", "1.23 MB"]);
});

test("a run whose lifecycle events were lost has a title", () => {
  const model = modelOf([head("event", "0123456789", 1)]);
  assert.equal(page.titleOf(model.runs.get("0123456789")), "run 01234567 (start not recorded)");
});
