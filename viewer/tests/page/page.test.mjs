// The page in Chromium, used as a person uses it: by roles, names, keys and clicks.

import assert from "node:assert/strict";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import { Sample, Viewer, axe, launch, recorded, run, runsOf, screenshot, temporary, totalOf } from "./browser.mjs";

let browser;
/** The programs of a test, which are stopped after it. */
const programs = [];
/** Messages of the console and errors of all pages: none is expected. */
const complaints = [];

before(async () => {
  browser = await launch();
});

after(async () => {
  await browser.close();
  for (const program of programs) await program.stop();
  rmSync(temporary, { recursive: true });
  assert.deepEqual(complaints, []);
});

async function open(url, options = {}) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 760 }, ...options });
  page.setDefaultTimeout(10_000);
  page.on("console", (message) => {
    // Chromium reports each connection that a test has cut.
    if (!message.text().includes("net::ERR_")) complaints.push(`${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => complaints.push(String(error.stack ?? error)));
  page.on("dialog", (dialog) => complaints.push(dialog.message()));
  await page.goto(url);
  return page;
}

async function sample(name, ...options) {
  const path = join(temporary, `${name}.jsonl`);
  const started = await Sample.start(path, ...options);
  programs.push(started);
  return started;
}

/** A sample, for tests that send it lines. */
async function started(name) {
  const one = await sample(name);
  return { path: one.path, obey: (line) => one.obey(line) };
}

async function view(path, options) {
  const viewer = await Viewer.start(path, options);
  programs.push(viewer);
  return viewer;
}

const tree = (page) => page.getByRole("tree", { name: "Runs below the run" });
const row = (page, name) => tree(page).getByRole("treeitem", { name });
const list = (page) => page.getByRole("listbox", { name: "Top-level runs, newest first" });
const panel = (page) => page.getByRole("tabpanel");
const status = (page, text) => page.locator("footer").getByText(text).waitFor();

/** The text beside a term of the overview. */
async function fact(page, name) {
  return panel(page).locator("dt", { hasText: new RegExp(`^${name}$`) }).locator("xpath=following-sibling::dd[1]").innerText();
}

/** Compares the tree of the page with the parents of the recording. */
async function checkTree(page, runs) {
  const items = await tree(page).getByRole("treeitem").evaluateAll((items) =>
    items.map((item) => ({ id: item.dataset.key, level: Number(item.getAttribute("aria-level")), top: item.getBoundingClientRect().top })),
  );
  items.sort((a, b) => a.top - b.top);
  const above = [];
  const parents = new Map();
  for (const { id, level } of items) {
    above[level] = id;
    parents.set(id, level > 1 ? above[level - 1] : null);
  }
  const ids = new Set([...parents.keys()].filter((id) => !id.startsWith("note-")));
  const expected = runs.filter(({ id }) => ids.has(id));
  assert.ok(expected.length > 5);
  for (const { id, parent } of expected) assert.equal(parents.get(id), parent, `the parent of ${id}`);
}

/** Compares the gaps that the page shows with those of the recording. */
async function checkGaps(page, records) {
  const lost = records.reduce((sum, record) => sum + (record.gap?.lost ?? 0), 0);
  assert.ok(lost > 0);
  const text = `${lost.toLocaleString("en-US")} events were lost here`;
  assert.equal(await tree(page).getByRole("treeitem", { name: text }).count(), 1);
  await status(page, `${lost.toLocaleString("en-US")} events lost`);
}

const number = (text) => Number(text.replaceAll(",", "").split(" ")[0]);

/** A duration of the page in nanoseconds, exact to three digits. */
function nanoseconds(text) {
  const [value, unit] = text.split(" ");
  return Number(value) * { ns: 1, µs: 1e3, ms: 1e6, s: 1e9 }[unit];
}

describe("a recording", () => {
  let recording, url, records, runs;
  before(async () => {
    const { path } = await sample("outcomes");
    url = (await view(path)).url;
    recording = path;
    records = recorded(path);
    runs = runsOf(records);
  });

  async function openAgent(options) {
    const page = await open(url, options);
    await list(page).getByRole("option", { name: "Agent guide" }).click();
    return page;
  }

  test("has the tree and the gaps of its records", async () => {
    const page = await openAgent();
    await checkTree(page, runs);
    await checkGaps(page, records);
    const snapshot = await tree(page).ariaSnapshot();
    assert.match(snapshot, /treeitem "Agent guide 5 errors below 2,468 tokens success [^"]*" \[expanded\] \[level=1\]/);
    const names = [...snapshot.matchAll(/treeitem "(?:⚠ )?(\S+ \S+)/g)].map(([, name]) => name);
    const tools = ["failed", "denied", "halted", "timed_out", "interrupted", "panicked", "aborted", "dropped"];
    const models = ["ChatModel granite", "ChatModel granite"];
    assert.deepEqual(names, ["Agent guide", ...models, ...tools.map((name) => `Tool ${name}`), "1,203 events", "Tool after_gap"]);
    await screenshot(page, "tree");
    await page.close();
  });

  test("a swapped parent and a lost gap are noticed by these tests", async () => {
    const model = readFileSync(new URL("../../page/model.js", import.meta.url), "utf8");
    const defects = [
      ["addChild(parent, run);", "addChild(parent.children[0] ?? parent, run);", (page) => checkTree(page, runs)],
      ["this.notes.push({ head, order });", "", (page) => checkGaps(page, records)],
    ];
    for (const [text, defect, check] of defects) {
      assert.equal(model.split(text).length, 2, text);
      const context = await browser.newContext();
      await context.route("**/model.js", (route) => route.fulfill({ body: model.replace(text, defect), contentType: "text/javascript" }));
      const page = await context.newPage();
      await page.goto(url);
      await list(page).getByRole("option", { name: "Agent guide" }).click();
      await assert.rejects(check(page), text);
      await context.close();
    }
  });

  test("shows for each run what its records say", async () => {
    const page = await openAgent();
    for (const run of runs.filter(({ kind }) => ["Agent", "ChatModel", "Tool"].includes(kind))) {
      await tree(page).locator(`[data-key="${run.id}"]`).click();
      await panel(page).getByText(run.id).waitFor();
      const outcome = run.outcome.replace("_", " ");
      assert.equal((await fact(page, "Outcome")).split(" ").slice(1).join(" "), outcome);
      const shown = nanoseconds(await fact(page, "Duration"));
      assert.ok(Math.abs(shown - run.duration) <= run.duration * 0.005 + 1, `${shown} and ${run.duration}`);
      assert.equal(await fact(page, "Attempts"), String(run.attempts));
      assert.equal(await fact(page, "Events"), String(run.events));
      const tokens = totalOf(runs, run.id, "tokens");
      assert.equal(tokens === 0 ? "none reported" : number(await fact(page, "Tokens")), tokens || (await fact(page, "Tokens")));
      const cost = totalOf(runs, run.id, "cost");
      assert.equal(cost === 0 ? "none reported" : Math.round(Number(await fact(page, "Cost")) * 1e9), cost || (await fact(page, "Cost")));
      if (run.error) await panel(page).getByText(run.error.message).first().waitFor();
    }
    await row(page, "Tool failed").click();
    await panel(page).getByText("the disk is full").waitFor();
    await panel(page).getByText('"file": "report.txt"').waitFor();
    await screenshot(page, "error");
    await page.close();
  });

  test("shows hostile texts as texts", async () => {
    const page = await open(url);
    const hostile = runs.find(({ kind }) => kind.includes("</script>"));
    await list(page).locator(`[data-key="${hostile.id}"]`).click();
    for (const key of "1234567") {
      await page.keyboard.press(key);
      // The run has no output, and its events have plain names.
      if (key !== "3" && key !== "5") await panel(page).getByText("onerror=").first().waitFor();
      assert.equal(await page.locator("main img, main script").count(), 0);
    }
    await panel(page).getByText("\\u202eevil").first().waitFor();
    // In names and titles too.
    const shown = await page.evaluate(() => {
      const labels = [...document.querySelectorAll("[title], [aria-label]")].flatMap((element) => [element.title, element.ariaLabel]);
      return [document.title, document.body.innerText, ...labels].join("\n");
    });
    assert.ok(shown.includes("\\u202eevil") && !/[\u202a-\u202e\u2066-\u2069]/.test(shown), shown);
    await page.keyboard.press("t");
    await page.getByRole("tree", { name: "Flame view" }).getByRole("treeitem", { name: "onerror=" }).waitFor();
    assert.equal(await page.title(), "outcomes.jsonl – emitree");
    await page.close();
  });

  test("names the trace of another process that a run continues", async () => {
    const page = await open(url);
    const [continuing] = runs.filter(({ kind }) => kind.includes("</script>"));
    await list(page).locator(`[data-key="${continuing.id}"]`).click();
    await panel(page).getByText("trace 4bf92f3577b34da6a3ce929d0e0e4736, span 00f067aa0ba902b7").waitFor();
    await page.close();
  });

  test("shows events outside of runs", async () => {
    const page = await open(url);
    await status(page, "2 events outside of runs");
    await list(page).getByRole("option", { name: "events outside of runs" }).click();
    await page.keyboard.press("5");
    await panel(page).getByRole("button", { name: "ready" }).click();
    await panel(page).getByText('"payload": true').waitFor();
    await panel(page).getByRole("button", { name: "onerror=" }).click();
    await panel(page).getByText('"group_id": "</script>').waitFor();
    assert.equal(await page.title(), "outcomes.jsonl – emitree");
    await page.close();
  });

  test("shows input, output, messages, events, context and raw records in tabs", async () => {
    const page = await openAgent();
    await row(page, "ChatModel granite").first().click();
    const texts = [
      ["Input", '"system": "Answer briefly."'],
      ["Output", '"finish_reason": "stop"'],
      ["Messages", "K2: 8611 m"],
      ["Events", "chatmodel.usage"],
      ["Context", '"internal": true'],
      ["Raw", '"duration_ns"'],
    ];
    for (const [name, text] of texts) {
      await page.getByRole("tab", { name }).click();
      await panel(page).getByText(text).first().waitFor();
      assert.equal(await page.getByRole("tab", { selected: true }).innerText(), name);
    }
    await page.getByRole("tab", { name: "Events" }).click();
    await panel(page).getByRole("button", { name: "chatmodel.usage" }).click();
    await panel(page).getByText('"input_tokens": 1200').waitFor();
    await page.close();
  });

  test("is the same after a reload, from its URL", async () => {
    const page = await openAgent();
    await row(page, "Tool denied").click();
    await page.keyboard.press("2");
    await page.getByRole("searchbox", { name: "Find text" }).fill("tool");
    await page.getByText("2 of 9").waitFor();
    await page.reload();
    await panel(page).getByText('"name": "denied"').waitFor();
    assert.equal(await row(page, "Tool denied").getAttribute("aria-selected"), "true");
    assert.equal(await page.getByRole("searchbox", { name: "Find text" }).inputValue(), "tool");
    await list(page).getByRole("option", { name: "1,203 events were lost here" }).click();
    await page.reload();
    await list(page).getByRole("option", { name: "1,203 events were lost here", selected: true }).waitFor();
    await panel(page).getByText("1,203 events were lost here").waitFor();
    await page.close();
  });
});

/** Writes a recording of records that a program would not write. */
function forged(name, lines) {
  const path = join(temporary, `${name}.jsonl`);
  writeFileSync(path, lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  return path;
}

/** The id of a run, by a number. */
const idOf = (number) => `01a220d4-9313-70f2-b2ad-${String(number).padStart(12, "0")}`;

/** The record of an event of a run, at a second of 1970. An event with a `run.` is a lifecycle event. */
function event(second, run, parent, name, payload, creator = { kind: "Tool", name: `t${run}`, id: run }) {
  const context = name.startsWith("run.") ? { internal: true } : {};
  const trace = { id: idOf(1), run_id: idOf(run), parent_run_id: parent === undefined ? null : idOf(parent) };
  const created_at = new Date(second * 1000).toISOString();
  return { id: idOf(900), path: `tool.${name}`, created_at, creator, context, group_id: null, trace, payload_type: "T", payload };
}

const begun = (second, run, parent, input = {}) => event(second, run, parent, "run.start", { input, output: null });
const finished = (second, run, parent, seconds, status = "success") =>
  event(second, run, parent, "run.finish", { input: {}, outcome: { status }, duration_ns: seconds * 1e9 });

describe("a recording that a program would not write", () => {
  test("of runs that are each other's parents is shown and exported, with a mark", async () => {
    const records = [begun(0, 1, 2), begun(1, 2, 1), finished(2, 2, 1, 1), finished(3, 1, 2, 3), begun(4, 3, 3), finished(5, 3, 3, 1)];
    const path = forged("cycle", records);
    const to = join(temporary, "cycle.html");
    run("emitree-view", path, "--export", to);
    for (const url of [(await view(path)).url, `file://${to}`]) {
      const page = await open(url);
      await status(page, "6 records · 3 runs · 2 cycles of parents");
      await list(page).getByRole("option", { name: /Tool t3.*parent cycle/ }).click();
      await panel(page).getByText(`${idOf(3)} (⚠ a cycle: this run is also above its parent)`).waitFor();
      await list(page).getByRole("option", { name: /Tool t1.*parent cycle/ }).click();
      await row(page, /Tool t1 ⚠ parent cycle success/).waitFor();
      await row(page, "Tool t2 success").click();
      await panel(page).getByText(idOf(2), { exact: true }).waitFor();
      assert.equal(await fact(page, "Parent"), "Tool t1");
      for (const key of ["t", "z", "e", "n"]) await page.keyboard.press(key);
      await page.close();
    }
  });

  test("has bars, an axis and a start that fit the duration, also if `start` is late", async () => {
    const records = [begun(8, 1), begun(9, 2, 1), finished(10, 2, 1, 8), finished(11, 1, undefined, 10)];
    const page = await open((await view(forged("late", records))).url, { timezoneId: "UTC" });
    await list(page).getByRole("option", { name: "Tool t1" }).click();
    assert.equal(await fact(page, "Started"), "1970-01-01 00:00:01.000");
    assert.equal(await fact(page, "Duration"), "10.0 s");
    assert.match(await page.locator("#axis").innerText(), /10\.0 s/);
    const bar = await row(page, "Tool t2").locator(".time i").evaluate(({ style }) => [style.left, style.width]);
    assert.deepEqual(bar, ["10%", "max(2px, 80%)"]);
    await page.close();
  });
});

/** Waits until the selected row of the tree, or of the list, is in view. */
function isInView(page, selector) {
  return page.waitForFunction((selector) => {
    const [view, row] = [document.querySelector(selector), document.querySelector(`${selector} [aria-selected=true]`)];
    if (!row) return false;
    const [outer, inner] = [view.getBoundingClientRect(), row.getBoundingClientRect()];
    return inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
  }, selector);
}

describe("a page opens", () => {
  /** 40 top-level runs with 60 runs below each. Errors are below the runs with these numbers. */
  function many(name, errors) {
    const records = [];
    for (let top = 1; top <= 40; top++) {
      const id = top * 100;
      records.push(begun(id, id));
      for (let below = 1; below <= 60; below++) {
        const isError = below === 50 && errors.includes(top);
        records.push(begun(id, id + below, id), finished(id + 1, id + below, id, 1, isError ? "failed" : "success"));
      }
      records.push(finished(id + 2, id, undefined, 2, errors.includes(top) ? "failed" : "success"));
    }
    return forged(name, records);
  }
  /** The addresses of the recording: served, and exported. */
  async function addressesOf(path) {
    const to = path.replace(".jsonl", ".html");
    run("emitree-view", path, "--export", to);
    return [(await view(path)).url, `file://${to}#`];
  }

  test("from a shared link with its run selected and in view", async () => {
    for (const url of await addressesOf(many("link", []))) {
      const page = await open(`${url}&run=${idOf(755)}`);
      await tree(page).getByRole("treeitem", { name: "Tool t755", selected: true }).waitFor();
      await list(page).getByRole("option", { name: "Tool t700", selected: true }).waitFor();
      await isInView(page, "#tree");
      await isInView(page, "#runs");
      await page.goto(`${url}&run=${idOf(1255)}&view=flame`);
      await page.getByRole("tree", { name: "Flame view" }).getByRole("treeitem", { name: "Tool t1255", selected: true }).waitFor();
      await isInView(page, "#runs");
      await page.close();
    }
  });

  test("on the first failure of a finished recording", async () => {
    for (const url of await addressesOf(many("failure", [9, 20]))) {
      const page = await open(url);
      await tree(page).getByRole("treeitem", { name: "Tool t950", selected: true }).waitFor();
      await isInView(page, "#tree");
      await isInView(page, "#runs");
      assert.equal(await fact(page, "Outcome"), "✗ failed");
      await page.close();
    }
  });

  test("at the beginning of a finished recording without failures", async () => {
    for (const url of await addressesOf(many("success", []))) {
      const page = await open(url);
      await tree(page).getByRole("treeitem", { name: "Tool t100", selected: true }).waitFor();
      await isInView(page, "#runs");
      await page.close();
    }
  });
});

describe("the filter of all errors", () => {
  test("has failed, timed out, panicked, aborted and denied runs, in the tree and in the flame view", async () => {
    const page = await open((await view((await started("errors")).path)).url);
    await list(page).getByRole("option", { name: "Agent guide" }).click();
    await row(page, /Agent guide.*5 errors below/).waitFor();
    assert.equal(await fact(page, "Errors below"), "5");
    await page.getByLabel("Outcome", { exact: true }).selectOption("all errors");
    await page.getByRole("checkbox", { name: "hide others" }).check();
    const expected = ["Agent guide", ...["failed", "denied", "timed_out", "panicked", "aborted"].map((name) => `Tool ${name}`)];
    const namesIn = async (tree) => {
      const labels = await tree.locator("[role=treeitem]:not(.note)").evaluateAll((items) => items.map((item) => item.title.split(",")[0]));
      return labels.sort();
    };
    await page.waitForFunction((count) => document.querySelectorAll("#tree [role=treeitem]:not(.note)").length === count, expected.length);
    assert.deepEqual(await namesIn(tree(page)), [...expected].sort());
    await page.keyboard.press("Escape");
    await tree(page).focus();
    await page.keyboard.press("t");
    const flame = page.getByRole("tree", { name: "Flame view" });
    await flame.getByRole("treeitem", { name: "Agent guide" }).waitFor();
    const shown = await namesIn(flame);
    assert.deepEqual(shown.filter((name) => !expected.includes(name)), []);
    await flame.focus();
    await page.keyboard.press("Home");
    await page.keyboard.press("ArrowDown");
    await flame.getByRole("treeitem", { name: "Tool failed", selected: true }).waitFor();
    await page.close();
  });
});

describe("the messages of an agent", () => {
  const message = (role, ...parts) => ({ role, parts });
  const text = (content) => ({ type: "text", content });
  const agent = { kind: "Agent", name: "clerk", id: 1 };
  const added = (second, message) => ({ ...event(second, 1, undefined, "message", { message }, agent), path: "agent.clerk.message" });
  const long = "x".repeat(100_001);

  test("have results with the name of the last call before them that has their id", async () => {
    const call = (name) => message("assistant", { type: "tool_call", id: "0", name, arguments: {} });
    const result = message("tool", { type: "tool_call_response", id: "0", response: "done" });
    const records = [
      event(0, 1, undefined, "run.start", { input: {} }, agent), added(1, call("weather")), added(2, result), added(3, call("book")),
      added(4, result), event(5, 1, undefined, "run.finish", { outcome: { status: "success" }, duration_ns: 5e9 }, agent),
    ];
    const page = await open((await view(forged("ids", records))).url);
    await list(page).getByRole("option", { name: "Agent clerk" }).click();
    await page.getByRole("tab", { name: "Messages" }).click();
    await panel(page).getByText("done").first().waitFor();
    const headings = await panel(page).getByRole("heading").allInnerTexts();
    assert.deepEqual(headings.filter((heading) => heading.startsWith("result")), ["result of weather", "result of book"]);
    await page.close();
  });

  test("show the texts, types and sizes of the parts of results, and load nothing", async () => {
    const image = (mime_type, uri) => ({ type: "uri", modality: "image", mime_type, uri });
    const hostile = image("<img src=x>", "https://127.0.0.1:9/a.png");
    const parts = [text("Of May."), image("image/png", "data:image/png;base64,QUJDREVG"), image(undefined, "data:image/gif,abc"), hostile];
    const result = message("tool", { type: "tool_call_response", id: "c1", response: "drawn", parts });
    const records = [
      event(0, 1, undefined, "run.start", { input: {} }, agent), added(1, message("user", image("image/png", "data:image/png;base64,QUJD"))),
      added(2, message("assistant", { type: "tool_call", id: "c1", name: "draw", arguments: {} })), added(3, result),
      event(4, 1, undefined, "run.finish", { outcome: { status: "success" }, duration_ns: 4e9 }, agent),
    ];
    const page = await open((await view(forged("parts", records))).url);
    await list(page).getByRole("option", { name: "Agent clerk" }).click();
    await page.getByRole("tab", { name: "Messages" }).click();
    await panel(page).getByText("drawn").waitFor();
    const shown = await panel(page).innerText();
    const expected = ["[image, image/png, 3 bytes]", "Of May.", "[image, image/png, 6 bytes]", "[image, image/gif, 3 bytes]", "[image, <img src=x>, https://127.0.0.1:9/a.png]"];
    for (const line of expected) assert.ok(shown.includes(line), `${line} in ${shown}`);
    assert.equal(await panel(page).locator("img").count(), 0);
    assert.equal(shown.includes("QUJD"), false);
    await page.close();
  });

  test("begin with its system prompt, and results have the name of their tool", async () => {
    const model = { kind: "ChatModel", name: "m", id: 2 };
    const request = { system: "Answer briefly.", messages: [] };
    const calls = [{ type: "tool_call", id: "c1", name: "read_file", arguments: {} }, { type: "tool_call", id: "c2", name: "count", arguments: {} }];
    const responses = [{ type: "tool_call_response", id: "c1", response: long }, { type: "tool_call_response", id: "c2", response: "no", is_error: true }];
    const records = [
      event(0, 1, undefined, "run.start", { input: {} }, agent), added(1, message("user", text("How many?"))),
      event(2, 2, 1, "run.start", { input: request }, model), event(3, 2, 1, "run.finish", { outcome: { status: "success" }, duration_ns: 1e9 }, model),
      added(4, message("assistant", ...calls)), added(5, message("tool", ...responses)), added(6, message("assistant", text("5"))),
      event(7, 1, undefined, "run.finish", { outcome: { status: "success" }, duration_ns: 7e9 }, agent),
    ];
    const page = await open((await view(forged("messages", records))).url);
    await list(page).getByRole("option", { name: "Agent clerk" }).click();
    await page.getByRole("tab", { name: "Messages" }).click();
    await panel(page).getByText("Answer briefly.").waitFor();
    const headings = await panel(page).getByRole("heading").allInnerTexts();
    const results = ["result of read_file", "error of count"];
    assert.deepEqual(headings, ["system", "user", "assistant", "calls read_file", "calls count", "tool", ...results, "assistant"]);
    // Nothing is cut without a word.
    assert.equal((await panel(page).innerText()).includes(long), false);
    await panel(page).getByRole("button", { name: "show all 100,001 characters" }).click();
    await panel(page).getByText(long).waitFor();
    await page.close();
  });
});

describe("the input of a tool that an approval has edited", () => {
  const tool = { kind: "Tool", name: "delete", id: 2 };
  const approval = { kind: "Middleware", name: "approval", id: 3 };
  const own = (run, parent, name, payload, creator) => event(2, run, parent, name, payload, creator);
  const inputs = async (page) => (await panel(page).locator("h3, pre").allInnerTexts()).map((text) => text.replaceAll(/\s+/g, ""));

  test("is the executed one, with who edited it", async () => {
    const [old, edited] = [{ path: "/" }, { path: "/tmp" }];
    const given = { ...event(1, 2, undefined, "run.start", { input: old }, tool) };
    const records = [
      given, { ...own(2, undefined, "edited", { id: "q", input: edited, by: "ada" }, approval), path: "middleware.approval.edited" },
      { ...own(2, undefined, "start", { input: edited, call_id: "c1" }, tool), path: "tool.delete.start" },
      event(3, 2, undefined, "run.finish", { outcome: { status: "success" }, duration_ns: 2e9 }, tool),
    ];
    const page = await open((await view(forged("edited", records))).url);
    await list(page).getByRole("option", { name: "Tool delete" }).click();
    await page.getByRole("tab", { name: "Input" }).click();
    await panel(page).getByText("Executed input, edited by ada").waitFor();
    const expected = ["Executedinput,editedbyada", '{"path":"/tmp"}', "Inputbeforethechange", '{"path":"/"}'];
    assert.deepEqual(await inputs(page), expected);
    await page.close();
  });

  test("of an agent's call, which is made again, says who edited it", async () => {
    const agent = { kind: "Agent", name: "clerk", id: 1 };
    const edited = { path: "/tmp" };
    const start = event(3, 2, 1, "run.start", { input: edited }, tool);
    start.context.call_id = "c1";
    const answered = (call, by, edited) => ({ ...event(2, 1, undefined, "answered", { id: "q", call, by, edited }, agent), path: "agent.clerk.answered" });
    const records = [
      event(0, 1, undefined, "run.start", { input: {} }, agent), answered("c1", "ada", true), answered("c0", "eve", true), answered("c1", "bob", false), start,
      { ...own(2, 1, "start", { input: edited, call_id: "c1" }, tool), path: "tool.delete.start" },
      event(4, 2, 1, "run.finish", { outcome: { status: "success" }, duration_ns: 1e9 }, tool),
      answered("c1", "eve", true), event(5, 1, undefined, "run.finish", { outcome: { status: "success" }, duration_ns: 5e9 }, agent),
    ];
    const page = await open((await view(forged("call", records))).url);
    await row(page, "Tool delete").click();
    await page.getByRole("tab", { name: "Input" }).click();
    await panel(page).getByText("Executed input, edited by ada").waitFor();
    assert.deepEqual(await inputs(page), ["Executedinput,editedbyada", '{"path":"/tmp"}']);
    await page.close();
  });
});

describe("the token", () => {
  test("leaves the address, is sent as a header and never as a cookie", async () => {
    const { url } = await view((await started("token")).path);
    const token = url.split("#token=")[1];
    const context = await browser.newContext();
    const page = await context.newPage();
    const requests = [];
    page.on("request", (request) => requests.push(request));
    await page.goto(`${url}&tab=2`);
    await status(page, "13 runs");
    await list(page).getByRole("option", { name: "Agent guide" }).click();
    await panel(page).getByText("How high is K2?").waitFor();
    assert.ok(!page.url().includes("token") && page.url().includes("tab=2"), page.url());
    assert.ok(requests.length > 10);
    for (const request of requests) {
      const path = new URL(request.url()).pathname;
      const headers = await request.allHeaders();
      const isForRecords = path === "/heads" || path.startsWith("/record/");
      assert.equal(headers.authorization, isForRecords ? `Bearer ${token}` : undefined, path);
      assert.ok(!request.url().includes(token) && headers.cookie === undefined && !(headers.referer ?? "").includes(token), path);
    }
    assert.deepEqual(await context.cookies(), []);
    await page.reload();
    await panel(page).getByText("How high is K2?").waitFor();
    await context.close();
  });

  test("that is missing or wrong is reported, and a new address in the same tab connects", async () => {
    const { url } = await view((await started("refused")).path);
    const context = await browser.newContext();
    const page = await context.newPage();
    for (const hash of ["", "#token=1234567890123456"]) {
      await page.goto(url.replace(/#.*/, hash));
      await status(page, "the server refuses this page: open the address that it printed");
    }
    await page.goto(url);
    await status(page, "13 runs");
    assert.ok(!page.url().includes("token"), page.url());
    await context.close();
  });
});

describe("a recording that grows", () => {
  test("of the example `agent` is seen live", async () => {
    const path = join(temporary, "agent.jsonl");
    const page = await open((await view(path)).url);
    await status(page, "0 records");
    run("examples/agent", "--record", path, "How many words has README.md, and what is that times 17?");
    await list(page).getByRole("option", { name: /Agent librarian.*success/ }).waitFor();
    await row(page, "ChatModel rules").last().click();
    await page.getByRole("tab", { name: "Messages" }).click();
    await panel(page).getByText("what is that times 17: ").waitFor();
    await status(page, `${recorded(path).length} records · 6 runs`);
    // docs/viewer.png is this picture.
    await screenshot(page, "agent");
    // The messages of an agent are those that were added to its history.
    await row(page, "Agent librarian").click();
    const roles = await panel(page).getByRole("heading", { level: 3 }).allInnerTexts();
    const expected = ["system", "user", "assistant (tool_call)", "tool", "assistant (tool_call)", "tool", "assistant"];
    assert.deepEqual(roles, expected);
    await page.getByRole("tab", { name: "Events" }).click();
    await panel(page).getByRole("button", { name: "agent.librarian.message" }).first().waitFor();
    const trajectory = panel(page).getByRole("button", { name: "middleware.trajectory.start" });
    assert.equal(await trajectory.count(), 0);
    await panel(page).getByRole("checkbox", { name: "show middleware.trajectory.*" }).check();
    await trajectory.first().waitFor();
    await page.close();
  });

  test("is followed from before its file exists, and a selection never moves", async () => {
    const path = join(temporary, "grows.jsonl");
    const page = await open((await view(path)).url);
    await status(page, "0 records");
    const growing = await sample("grows");
    await list(page).getByRole("option").first().waitFor();
    await growing.obey("open");
    await list(page).getByRole("option", { name: /Job open.*running/ }).waitFor();
    await row(page, /Job open.*running/).waitFor();
    await growing.obey("more 100");
    // The newest run is in view.
    await tree(page).getByRole("treeitem", { name: "Step tick" }).last().waitFor();
    await page.waitForFunction(() => document.querySelector("#tree").scrollTop > 0);
    await row(page, "Step tick").last().click();
    const chosen = new URL(page.url()).hash;
    const scrolled = await page.locator("#tree").evaluate((tree) => tree.scrollTop);
    await growing.obey("more 2000");
    await status(page, "2,114 runs");
    assert.equal(new URL(page.url()).hash, chosen);
    assert.equal(await page.locator("#tree").evaluate((tree) => tree.scrollTop), scrolled);
    growing.process.stdin.write("close\n");
    await growing.line();
    await list(page).getByRole("option", { name: /Job open.*success/ }).waitFor();
    await page.getByRole("button", { name: "Follow", pressed: false }).waitFor();
    // Keys bring the selected row into view.
    const isInView = (name) => page.waitForFunction((name) => {
      const [view, row] = [document.querySelector("#tree"), document.querySelector("#tree [aria-selected=true]")];
      if (!row?.textContent.includes(name)) return false;
      const [outer, inner] = [view.getBoundingClientRect(), row.getBoundingClientRect()];
      return inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
    }, name);
    await tree(page).focus();
    await page.keyboard.press("Home");
    await isInView("open");
    await page.keyboard.press("PageDown");
    await isInView("tick");
    await page.keyboard.press("End");
    await isInView("tick");
    assert.ok(await page.locator("#tree").evaluate((tree) => tree.scrollTop > 40_000));
    await page.keyboard.press("PageUp");
    await isInView("tick");
    await page.close();
  });

  test("continues after the server was stopped and started again", async () => {
    const { path, obey } = await started("restarts");
    const token = "a-token-that-stays-the-same";
    const first = await view(path, { token });
    const page = await open(first.url);
    await status(page, "13 runs");
    const address = new URL(first.url).host;
    await first.stop();
    await status(page, "not connected, trying again");
    await obey("more 700");
    await view(path, { listen: address, token });
    await status(page, `${recorded(path).length.toLocaleString("en-US")} records · 713 runs`);
    await page.close();
  });

  test("that begins anew clears the page", async () => {
    const first = await sample("anew");
    const { path } = first;
    await first.stop();
    const page = await open((await view(path)).url);
    await status(page, "13 runs");
    const again = await sample("anew");
    await again.obey("more 2");
    await status(page, "15 runs");
    assert.equal(await list(page).getByRole("option", { name: "Agent guide" }).count(), 1);
    await page.close();
  });

  test("at a thousand events a second draws at most once a frame", async () => {
    const { path, obey } = await started("fast");
    const page = await open((await view(path)).url);
    await status(page, "13 runs");
    // Counting has begun before the events are made.
    await page.evaluate(() => {
      let draws = 0;
      const draw = window.draw;
      window.draw = () => {
        draws += 1;
        draw();
      };
      const count = async () => {
        let frames = 0;
        while (!document.querySelector("#status").textContent.includes("1,013 runs")) {
          await new Promise(requestAnimationFrame);
          frames += 1;
        }
        return { draws, frames };
      };
      window.seen = count();
    });
    for (let n = 0; n < 10; n++) await obey("more 100");
    const { draws, frames } = await page.evaluate(() => window.seen);
    assert.ok(draws > 0 && draws <= frames + 1, `${draws} drawings in ${frames} frames`);
    await page.close();
  });
});

describe("a program with a viewer", () => {
  test("shows its own runs live, and the page stays when the program has ended", async () => {
    const program = await Sample.withPage(join(temporary, "own.jsonl"));
    programs.push(program);
    const page = await open(program.url);
    await list(page).getByRole("option", { name: "Agent guide" }).click();
    await checkTree(page, runsOf(recorded(program.path)));
    await program.obey("more 3");
    const runs = runsOf(recorded(program.path));
    const ticks = list(page).getByRole("option", { name: "Step tick" });
    await ticks.nth(2).waitFor();
    assert.equal(await list(page).getByRole("option").count(), runs.filter(({ parent }) => !parent).length + 1);
    await row(page, "Tool failed").click();
    await panel(page).getByText("the disk is full").waitFor();
    await program.stop();
    await status(page, "not connected, trying again");
    assert.equal(await ticks.count(), 3);
    await page.close();
  });
});

describe("an exported page", () => {
  let page, path;
  before(async () => {
    path = (await started("exported")).path;
    const to = join(temporary, "exported.html");
    const out = run("emitree-view", path, "--export", to);
    assert.match(out, /^\d+ records, 13 runs \(0 unfinished\)\n1203 events lost, 0 malformed lines\n$/);
    page = await open(`file://${to}`);
  });
  after(() => page.close());

  test("has the tree, the gaps and the records, and requests nothing", async () => {
    const requests = [];
    page.on("request", (request) => requests.push(request.url()));
    await list(page).getByRole("option", { name: "Agent guide" }).click();
    await checkTree(page, runsOf(recorded(path)));
    await checkGaps(page, recorded(path));
    await row(page, "Tool failed").click();
    await panel(page).getByText("the disk is full").waitFor();
    await page.keyboard.press("7");
    await panel(page).getByText('"duration_ns"').waitFor();
    assert.deepEqual(requests, []);
  });

  test("shows hostile texts as texts", async () => {
    const hostile = runsOf(recorded(path)).find(({ kind }) => kind.includes("</script>"));
    await list(page).locator(`[data-key="${hostile.id}"]`).click();
    for (const key of "12467") {
      await page.keyboard.press(key);
      await panel(page).getByText("onerror=").first().waitFor();
    }
    assert.equal(await page.title(), "exported.jsonl – emitree");
  });

  test("of a program that crashed has unfinished runs, malformed lines and an incomplete line", async () => {
    const lines = readFileSync(path, "utf8").split("\n");
    const crashed = join(temporary, "crashed.jsonl");
    writeFileSync(crashed, [...lines.slice(0, 20), "nonsense", lines[20], lines[21].slice(0, 40)].join("\n"));
    const to = join(temporary, "crashed.html");
    assert.match(run("emitree-view", crashed, "--export", to), /2 malformed lines\n$/);
    const page = await open(`file://${to}`);
    await list(page).getByRole("option", { name: /Agent guide.*unfinished/ }).click();
    await tree(page).getByRole("treeitem", { name: "line 21 is not a record: " }).waitFor();
    await status(page, "1 malformed lines · the last line is not complete: 40 B");
    await page.close();
  });

  test("does not overwrite its own recording, and names a recording that is missing", () => {
    assert.throws(() => run("emitree-view", path, "--export", path), /is the recording itself/);
    assert.throws(() => run("emitree-view", join(temporary, "no-such-file"), "--export", join(temporary, "x.html")), /no-such-file/);
    assert.ok(recorded(path).length > 40);
  });
});

describe("the keys", () => {
  let page;
  before(async () => {
    page = await open((await view((await started("keys")).path)).url);
    await list(page).getByRole("option", { name: "Agent guide" }).click();
    await tree(page).focus();
  });
  after(() => page.close());

  const press = (...keys) => keys.reduce((before, key) => before.then(() => page.keyboard.press(key)), Promise.resolve());
  /** The selected row, once it is the expected one. */
  const chosen = (name) => tree(page).getByRole("treeitem", { name, selected: true }).waitFor();

  test("move in the tree, open and close", async () => {
    await press("Home");
    await chosen("Agent guide");
    await press("ArrowDown", "ArrowDown", "ArrowDown");
    await chosen("Tool failed");
    await press("ArrowUp");
    await chosen("ChatModel granite");
    await press("End");
    await chosen("Tool after_gap");
    await press("ArrowUp");
    await chosen("1,203 events were lost here");
    await press("PageUp");
    await chosen("Agent guide");
    await press("PageDown", "ArrowLeft");
    await chosen("Agent guide");
    await press("ArrowLeft");
    await tree(page).getByRole("treeitem", { name: "Agent guide", expanded: false }).waitFor();
    assert.equal(await tree(page).getByRole("treeitem").count(), 1);
    await press("ArrowRight");
    await tree(page).getByRole("treeitem", { name: "Agent guide", expanded: true }).waitFor();
    await press("ArrowRight");
    await chosen("ChatModel granite");
    assert.equal(await tree(page).getAttribute("aria-activedescendant"), await tree(page).getByRole("treeitem", { selected: true }).getAttribute("id"));
  });

  test("e and E go to the next and the previous error", async () => {
    await press("Home", "e");
    await chosen("Tool failed");
    await press("e");
    await chosen("Tool denied");
    await press("E");
    await chosen("Tool failed");
  });

  test("/ n N find matches, and Escape returns to the tree", async () => {
    await press("Home", "/");
    assert.equal(await page.evaluate(() => document.activeElement.id), "find-text");
    await page.keyboard.type("granite");
    await page.locator("#find-count").getByText("2", { exact: true }).waitFor();
    await press("Escape", "n");
    await page.getByText("1 of 2").waitFor();
    await press("n");
    await page.getByText("2 of 2").waitFor();
    await press("N");
    await page.getByText("1 of 2").waitFor();
    await page.getByRole("searchbox", { name: "Find text" }).fill("");
    await tree(page).focus();
  });

  test("t shows the flame view, in which arrows move as well", async () => {
    await press("Home", "t");
    const flame = page.getByRole("tree", { name: "Flame view" });
    const chosen = (name) => flame.getByRole("treeitem", { name, selected: true }).waitFor();
    await chosen("Agent guide");
    await flame.focus();
    await press("ArrowDown");
    await chosen("ChatModel granite");
    await press("ArrowRight", "ArrowRight");
    await chosen("Tool failed");
    await press("ArrowUp");
    await chosen("Agent guide");
    await screenshot(page, "flame");
    for (const color of ["outcome", "cost", "kind"]) {
      await page.getByRole("combobox", { name: "Color of the flame view" }).selectOption(color);
      await flame.locator(`[class^="${{ outcome: "of-", cost: "cost-", kind: "hue-" }[color]}"]`).first().waitFor();
    }
    await flame.focus();
    await press("t");
    await tree(page).waitFor();
  });

  test("z shows only the selected run and the runs below, and back", async () => {
    await tree(page).focus();
    await press("Home", "ArrowDown", "z");
    await page.waitForFunction(() => document.querySelectorAll("#tree [role=treeitem]").length === 1);
    await press("z");
    await row(page, "Agent guide").waitFor();
  });

  test("1 to 7 choose the tabs", async () => {
    for (const [index, name] of ["Overview", "Input", "Output", "Messages", "Events", "Context", "Raw"].entries()) {
      await press(String(index + 1));
      await page.getByRole("tab", { name, selected: true }).waitFor();
    }
    await page.getByRole("tab", { name: "Raw" }).focus();
    await press("ArrowRight");
    await page.getByRole("tab", { name: "Overview", selected: true }).waitFor();
    await press("ArrowLeft");
    await page.getByRole("tab", { name: "Raw", selected: true }).waitFor();
  });

  test("c copies what the tab shows as JSON", async () => {
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await tree(page).focus();
    await press("Home", "e", "2", "c");
    await page.getByRole("status").getByText("copied").waitFor();
    assert.deepEqual(JSON.parse(await page.evaluate(() => navigator.clipboard.readText())), { name: "failed" });
  });

  test("f follows, until one selects", async () => {
    await press("f");
    await page.getByRole("button", { name: "Follow", pressed: true }).waitFor();
    await press("End");
    await page.getByRole("button", { name: "Follow", pressed: false }).waitFor();
  });

  test("? lists the keys", async () => {
    await press("?");
    const dialog = page.getByRole("dialog", { name: "Keys" });
    for (const key of ["/", "n", "N", "e", "E", "t", "f", "z", "c", "?", "1", "7"]) {
      await dialog.getByText(key, { exact: true }).waitFor();
    }
    await press("Escape");
    await dialog.waitFor({ state: "hidden" });
  });
});

describe("the search", () => {
  test("finds by each field, hides the rest, and keeps the runs above", async () => {
    const page = await open((await view((await started("search")).path)).url);
    await list(page).getByRole("option", { name: "Agent guide" }).click();
    const count = (text) => page.locator("#find-count").getByText(text, { exact: true }).waitFor();
    const field = (name) => page.getByLabel(name, { exact: true });
    await field("Kind").selectOption("ChatModel");
    await count("2");
    assert.equal(await page.locator("#tree .match").count(), 2);
    await field("Kind").selectOption("");
    await field("Outcome").selectOption("denied");
    await count("1");
    await page.getByRole("checkbox", { name: "hide others" }).check();
    await page.waitForFunction(() => document.querySelectorAll("#tree [role=treeitem]:not(.note)").length === 2);
    await row(page, "Agent guide").waitFor();
    await page.getByRole("button", { name: "Next match" }).click();
    await count("1 of 1");
    await field("Outcome").selectOption("");
    await page.getByLabel("More tokens than").fill("2000");
    await count("1");
    await page.getByLabel("More tokens than").fill("");
    await page.getByLabel("Longer than, in milliseconds").fill("3600000");
    await count("0");
    await page.close();
  });
});

describe("for everybody", () => {
  for (const colorScheme of ["light", "dark"]) {
    test(`axe finds nothing in the ${colorScheme} scheme`, async () => {
      const page = await open((await view((await started(`axe-${colorScheme}`)).path)).url, { colorScheme, bypassCSP: true });
      await list(page).getByRole("option", { name: "Agent guide" }).click();
      await row(page, "ChatModel granite").first().click();
      await page.evaluate(axe);
      for (const key of ["1", "4", "5", "t", "?"]) {
        await page.keyboard.press(key);
        await page.waitForTimeout(100);
        const { violations } = await page.evaluate(() => window.axe.run());
        const found = violations.flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => `${id}: ${html} ${failureSummary}`));
        assert.deepEqual(found, [], `after ${key}`);
      }
      await page.keyboard.press("Escape");
      await page.keyboard.press("t");
      await screenshot(page, colorScheme);
      await page.close();
    });
  }

  for (const [name, viewport] of [["400 pixels", { width: 400, height: 800 }], ["200 percent", { width: 640, height: 380 }]]) {
    test(`the page can be used at ${name}`, async () => {
      const page = await open((await view((await started(`narrow-${viewport.width}`)).path)).url, { viewport });
      await list(page).getByRole("option", { name: "Agent guide" }).click();
      await row(page, "Tool failed").click();
      await page.getByRole("tab", { name: "Raw" }).click();
      await panel(page).getByText('"duration_ns"').waitFor();
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "no horizontal scrolling");
      await screenshot(page, `narrow-${viewport.width}`);
      await page.close();
    });
  }

  test("nothing moves for a person who asks for reduced motion", async () => {
    const { path, obey } = await started("motion");
    await obey("open");
    for (const [reducedMotion, expected] of [["reduce", 0], ["no-preference", 1]]) {
      const page = await open((await view(path)).url, { reducedMotion });
      await row(page, "Job open").waitFor();
      assert.equal(await page.evaluate(() => document.getAnimations().length), expected);
      await page.close();
    }
  });
});

/** The milliseconds from a key to the next frame, of which 95 % are shorter. */
async function slowestOf(page, keys) {
  const times = [];
  for (let n = 0; n < 60; n++) {
    times.push(await page.evaluate(async (key) => {
      const begin = performance.now();
      document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      await new Promise(requestAnimationFrame);
      return performance.now() - begin;
    }, keys[n % keys.length]));
  }
  return times.sort((a, b) => a - b)[Math.floor(times.length * 0.95)];
}

describe("100,000 events", () => {
  test("are drawn as soon as they are parsed, and a key takes at most two frames", async () => {
    const path = join(temporary, "many.jsonl");
    run("examples/sample_recording", path, "--events", "100000");
    const to = join(temporary, "many.html");
    run("emitree-view", path, "--export", to);
    const page = await open(`file://${to}`);
    await status(page, "99,900 records · 33,300 runs");
    // The best of five, because other programs may need the processor.
    const [parses, draws, keys] = [[], [], []];
    for (let round = 0; round < 5; round++) {
      await page.reload();
      await status(page, "99,900 records · 33,300 runs");
      const [parse, parsed, drawn] = await page.evaluate(() =>
        ["parse", "parsed", "drawn"].map((name) => performance.getEntriesByName(name)[0].startTime),
      );
      parses.push(parsed - parse);
      draws.push(drawn - parsed);
      await list(page).focus();
      keys.push(await slowestOf(page, ["ArrowDown", "PageDown", "e"]));
    }
    const [parse, draw, key] = [parses, draws, keys].map((times) => Math.round(Math.min(...times)));
    console.log(`JSON.parse ${parse} ms, first draw ${draw} ms, a key ${key} ms at 95 %`);
    assert.ok(draw <= 2 * parse, `JSON.parse ${parses} ms, first draw ${draws} ms`);
    assert.ok(key <= 34, `keys took ${keys} ms`);
    await page.close();
  });
});
