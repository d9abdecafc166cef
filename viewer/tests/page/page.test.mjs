// The page in Chromium, used as a person uses it: by roles, names, keys and clicks.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
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
  assert.deepEqual(complaints, []);
});

async function open(url, options = {}) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 760 }, ...options });
  page.setDefaultTimeout(10_000);
  page.on("console", (message) => complaints.push(`${message.type()}: ${message.text()}`));
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
    await screenshot(page, "tree");
    await page.close();
  });

  test("a swapped parent and a lost gap are noticed by these tests", async () => {
    const model = readFileSync(new URL("../../page/model.js", import.meta.url), "utf8");
    const defects = [
      ["parent.children.push(run);", "(parent.children[0] ?? parent).children.push(run);", (page) => checkTree(page, runs)],
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
    await page.keyboard.press("t");
    await page.getByRole("tree", { name: "Flame view" }).getByRole("treeitem", { name: "onerror=" }).waitFor();
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
    await page.close();
  });
});

describe("a recording that grows", () => {
  test("of the example `agent` is seen live", async () => {
    const path = join(temporary, "agent.jsonl");
    const page = await open((await view(path)).url);
    await status(page, "0 records");
    run("examples/agent", "--record", path, "How many words has README.md, and what is that times 17?");
    await list(page).getByRole("option", { name: "Agent librarian, success" }).waitFor();
    await row(page, "ChatModel rules").last().click();
    await page.getByRole("tab", { name: "Messages" }).click();
    await panel(page).getByText("what is that times 17: ").waitFor();
    await status(page, `${recorded(path).length} records · 6 runs`);
    // docs/viewer.png is this picture.
    await screenshot(page, "agent");
    await page.close();
  });

  test("is followed from before its file exists, and a selection never moves", async () => {
    const path = join(temporary, "grows.jsonl");
    const page = await open((await view(path)).url);
    await status(page, "0 records");
    const growing = await sample("grows");
    await list(page).getByRole("option").first().waitFor();
    await growing.obey("open");
    await list(page).getByRole("option", { name: "Job open, running" }).waitFor();
    await row(page, "Job open, running").waitFor();
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
    await list(page).getByRole("option", { name: "Job open, success" }).waitFor();
    assert.equal(await page.getByRole("button", { name: "Follow" }).getAttribute("aria-pressed"), "false");
    await page.close();
  });
});
