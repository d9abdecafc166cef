// Where the records come from: the page itself, or a server that follows a recording.
"use strict";

/** The number of records in each block of an exported page. */
const EXPORTED_BLOCK = 500;

/** @param {number} at @param {number} number @returns {Promise<any>} */
async function readRecord(at, number) {
  if (!model.isLive) return exportedRecord(at);
  const cursor = [model.recording, at.toString(16), number.toString(16)].join("-");
  const response = await fetch(`record/${cursor}`);
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
  byId("title").textContent = title;
  document.title = `${title} – emitree`;
}

function follow() {
  const feed = new EventSource("heads");
  feed.addEventListener("about", ({ data }) => show(JSON.parse(data).title));
  feed.addEventListener("heads", ({ data }) => {
    connection = "";
    model.add(JSON.parse(data));
    schedule();
  });
  feed.addEventListener("restart", () => {
    model.clear();
    records.clear();
    announce("the recording has begun anew");
    schedule();
  });
  feed.addEventListener("fault", ({ data }) => {
    connection = `⚠ ${JSON.parse(data)}`;
    schedule();
  });
  feed.addEventListener("error", () => {
    // The browser connects again by itself, unless the server has refused.
    const isOver = feed.readyState === EventSource.CLOSED;
    connection = isOver ? "⚠ the server refuses this page: open the address that it printed" : "⚠ not connected, trying again";
    schedule();
  });
}

readUrl();
listen();
if (model.isLive) follow();
else openExported();
draw();
performance.mark("drawn");
