// Where the records come from: the page itself, or a server that follows a recording.
"use strict";

/** The number of records in each block of an exported page. */
const EXPORTED_BLOCK = 500;

/** @param {number} at @param {number} number @returns {Promise<any>} */
async function readRecord(at, number) {
  if (!model.isLive) return exportedRecord(at);
  const cursor = [model.recording, at.toString(16), number.toString(16)].join("-");
  const response = await request(`record/${cursor}`);
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

/** The index of each exported record, by its position. @type {Map<number, number> | undefined} */
let exported;

/** @param {number} at */
function exportedRecord(at) {
  exported ??= new Map(exportedHeads.map((head, index) => [head.at, index]));
  const index = exported.get(at) ?? -1;
  const block = byId(`records-${Math.floor(index / EXPORTED_BLOCK)}`);
  if (!block) throw new Error(`the page has no record at ${at}`);
  block.records ??= JSON.parse(block.textContent);
  return block.records[index % EXPORTED_BLOCK];
}

/** @type {Head[]} */
let exportedHeads = [];

function openExported() {
  performance.mark("parse");
  const { title, ...batch } = JSON.parse(byId("recording").textContent);
  performance.mark("parsed");
  exportedHeads = batch.heads;
  show(title);
  model.add(batch);
}

/** @param {string} title */
function show(title) {
  setText(byId("title"), title);
  document.title = visible(`${title} – emitree`);
}

// ---- The server

/** The key of the token in the storage of the tab. Another port is another origin, and has another storage. */
const TOKEN = "emitree.token";

/** The milliseconds after which the page connects again. */
const RETRY = 1000;

/** Takes the token out of the address, where it could be copied with a link. Returns `false` if there is none. */
function takeToken() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const token = parameters.get("token");
  if (token === null) return false;
  sessionStorage.setItem(TOKEN, token);
  parameters.delete("token");
  const rest = String(parameters);
  history.replaceState(null, "", rest ? `#${rest}` : location.pathname);
  return true;
}

/** Requests a path with the token. @param {string} path @param {RequestInit} [options] */
function request(path, { headers = {}, ...options } = {}) {
  const authorization = `Bearer ${sessionStorage.getItem(TOKEN) ?? ""}`;
  return fetch(path, { ...options, headers: { ...headers, authorization }, redirect: "error", credentials: "omit" });
}

/** The id of the last event, after which the feed continues. */
let lastId = "";

/** The feed. A new one takes the place of the one before. */
let feed = new AbortController();

/** Follows the recording until the server refuses. */
async function follow() {
  feed.abort();
  feed = new AbortController();
  const { signal } = feed;
  while (!signal.aborted) {
    try {
      // `EventSource` sends no header with a token, so the events are read here.
      const response = await request("heads", { signal, headers: lastId ? { "last-event-id": lastId } : {} });
      if (response.status === 401 || response.status === 403) {
        report("⚠ the server refuses this page: open the address that it printed");
        return;
      }
      if (!response.ok || !response.body) throw new Error(await response.text());
      await readEvents(response.body, onEvent);
    } catch {
      // The server has stopped, or the network is away.
      if (signal.aborted) return;
    }
    report("⚠ not connected, trying again");
    await new Promise((resolve) => setTimeout(resolve, RETRY));
  }
}

/** @param {string} text */
function report(text) {
  connection = text;
  schedule();
}

/** Reads server-sent events. @param {ReadableStream} body @param {(name: string, data: any, id: string | undefined) => void} on */
async function readEvents(body, on) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const events = (rest + part.value).split("\n\n");
    rest = events.pop() ?? "";
    for (const event of events) {
      /** @type {Map<string, string>} */
      const fields = new Map();
      for (const line of event.split("\n")) {
        const colon = line.indexOf(":");
        fields.set(line.slice(0, colon), line.slice(colon + 1).trimStart());
      }
      const data = fields.get("data");
      // A comment keeps the connection alive.
      if (data !== undefined) on(fields.get("event") ?? "", JSON.parse(data), fields.get("id"));
    }
  }
}

/** @param {string} name @param {any} data @param {string | undefined} id */
function onEvent(name, data, id) {
  if (id !== undefined) lastId = id;
  if (name === "about") show(data.title);
  if (name === "fault") report(`⚠ ${data}`);
  if (name === "heads") {
    connection = "";
    model.add(data);
  }
  if (name === "restart") {
    model.clear();
    records.clear();
    change({ run: undefined, note: undefined, root: undefined, focus: undefined, follows: true });
    // As after a reload.
    state.isOpening = true;
    announce("the recording has begun anew");
  }
  schedule();
}

if (model.isLive) takeToken();
readUrl();
listen();
if (model.isLive) follow();
else openExported();
draw();
performance.mark("drawn");
