// Starts the programs that the tests of the page use, and opens the page in Chromium.

import { spawn, execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const { EMITREE_DEBUG: debug, EMITREE_PAGE_TEST: folder } = process.env;
const require = createRequire(join(folder, "node_modules", "x.js"));
const { chromium } = require("playwright-core");

export const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
export const temporary = mkdtempSync(join(tmpdir(), "emitree-page-"));

const flags = ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

export async function launch(more = []) {
  return chromium.launch({ executablePath: "/usr/bin/chromium", args: [...flags, ...more] });
}

export function screenshot(page, name) {
  return page.screenshot({ path: join(folder, `${name}.png`) });
}

/** A program whose lines of output are awaited one by one. */
class Program {
  constructor(command, options = [], environment = {}) {
    this.process = spawn(join(debug, command), options, {
      env: { ...process.env, ...environment, RUST_BACKTRACE: "0" },
      stdio: ["pipe", "pipe", "inherit"],
    });
    this.lines = createInterface({ input: this.process.stdout })[Symbol.asyncIterator]();
  }

  async line() {
    const { value, done } = await this.lines.next();
    if (done) throw new Error("the program has ended");
    return value;
  }

  async stop() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill();
    await ended;
  }
}

/** Records runs with every outcome, and then more on request. */
export class Sample extends Program {
  constructor(path, ...options) {
    super("examples/sample_recording", [path, ...options]);
    this.path = path;
  }

  static async start(path, ...options) {
    const sample = new Sample(path, ...options);
    await sample.line();
    return sample;
  }

  /** Starts a sample that shows its events on a page of its own. */
  static async withPage(path) {
    const sample = new Sample(path, "--page");
    sample.url = await sample.line();
    await sample.line();
    return sample;
  }

  /** Sends a line, and waits until it was obeyed. */
  async obey(line) {
    this.process.stdin.write(`${line}\n`);
    await this.line();
  }
}

/** Shows a recording. */
export class Viewer extends Program {
  static async start(path, { listen = "127.0.0.1:0", token } = {}) {
    const viewer = new Viewer("emitree-view", [path, "--listen", listen], token ? { EMITREE_VIEW_TOKEN: token } : {});
    viewer.url = await viewer.line();
    return viewer;
  }
}

export function run(command, ...options) {
  return execFileSync(join(debug, command), options, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
}

/** The records of a recording, read without any code of the page. */
export function recorded(path) {
  const lines = readFileSync(path, "utf8").split("\n").filter((line) => line.trim() !== "");
  return lines.map((line) => JSON.parse(line));
}

/** The runs of a recording, added up without any code of the page or of the library. */
export function runsOf(records) {
  const runs = new Map();
  for (const record of records) {
    if (!record.trace) continue;
    const { run_id: id, parent_run_id: above } = record.trace;
    // The span of another process is no run of the page.
    const parent = above?.startsWith("00000000-0000-0000-") ? null : above;
    if (!runs.has(id)) runs.set(id, { id, parent, attempts: 1, tokens: 0, cost: 0, events: 0 });
    const run = runs.get(id);
    const name = record.path.split(".").pop();
    run.events += 1;
    if (name === "attempt_discarded") run.attempts += 1;
    if (name === "usage") {
      const { input_tokens: input, output_tokens: output } = record.payload.usage;
      run.tokens += input + output;
      run.cost += Math.round(Number(record.payload.cost ?? 0) * 1e9);
    }
    if (record.context.internal !== true) continue;
    [run.kind, run.name] = [record.creator.kind, record.creator.name];
    if (name === "start") run.start = record;
    if (name === "finish") [run.outcome, run.duration] = [record.payload.outcome.status, record.payload.duration_ns];
    if (name === "error") run.error = record.payload.error;
  }
  return [...runs.values()];
}

/** The tokens of a run and of all runs below it. */
export function totalOf(runs, id, field) {
  const run = runs.find((run) => run.id === id);
  return runs.filter((run) => run.parent === id).reduce((sum, { id: child }) => sum + totalOf(runs, child, field), run[field]);
}
