// Each kind of end, with `@ag-ui/client`. Streams are recorded for `ag-ui-validate`.

import assert from "node:assert/strict";
import { createWriteStream } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { beginnings, folder, load, newThread, start, until } from "./support.mjs";

const { HttpAgent } = await load("@ag-ui/client");
let address, stop;
before(async () => ([address, stop] = await start("web_test_server")));
after(() => stop());

let recorded = 0;
/** Sends a request as `fetch` does, and records the stream. */
async function recording(url, options) {
  const response = await fetch(url, options);
  if (!response.ok) return response;
  const file = createWriteStream(join(folder, `${process.pid}-${(recorded += 1)}.sse`));
  const [read, kept] = response.body.tee();
  kept.pipeTo(new WritableStream({ write: (bytes) => void file.write(bytes), close: () => void file.end() })).catch(() => file.end());
  return new Response(read, { status: response.status, headers: response.headers });
}

/** Makes a client, which collects what it was told. */
function client(options = {}) {
  const { path = "/agent", threadId = newThread(), fetch: own = recording, ...others } = options;
  const agent = new HttpAgent({ url: address + path, threadId, fetch: own, ...others });
  agent.told = { events: [] };
  agent.subscribe({
    onEvent: ({ event }) => void agent.told.events.push(event),
    onRunFinishedEvent: ({ event }) => void (agent.told.outcome = event.outcome),
    onRunErrorEvent: ({ event }) => void (agent.told.error = event),
  });
  return agent;
}

async function ask(agent, content, parameters = {}) {
  agent.told.outcome = agent.told.error = undefined;
  if (content !== undefined) agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
  await agent.runAgent(parameters);
  return agent.told;
}

const answers = (agent) => agent.messages.filter(({ role }) => role === "assistant").map(({ content }) => content ?? "").join("|");

test("an answer with reasoning and a failing tool", async () => {
  const agent = client();
  const { outcome } = await ask(agent, "think text call fail call deny; text");
  assert.equal(outcome.type, "success");
  assert.equal(answers(agent), "Everest is high.|Everest is high.");
  const results = agent.messages.filter(({ role }) => role === "tool");
  assert.deepEqual(results.map(({ content }) => content.includes("the dice are gone") || content.startsWith("denied by")), [true, true]);
});

for (const [kind, code, message] of [
  ["broken", "failed", "internal error"],
  ["denied", "denied", "not on Sundays"],
  ["halted", "halted", "too many tokens"],
  ["timeout", "timed_out", "the run took too long"],
]) {
  for (const [name, beginning] of Object.entries(beginnings)) {
    test(`the end ${kind} after ${name}`, async () => {
      const agent = client();
      const { error } = await ask(agent, `${beginning} fail ${kind}`);
      assert.deepEqual([error.code, error.message], [code, message]);
      const shown = JSON.stringify(agent.messages);
      assert.ok(!shown.includes("10.0.0.7"));
      assert.ok(!/Bob/.test(shown.replace(/"content":"[^"]*cut pay[^"]*"/, "")), "a call that is cut is taken back");
    });
  }
}

test("a reply that a guard withholds is taken back", async () => {
  const agent = client();
  const { error } = await ask(agent, "think code");
  assert.equal(error.code, "denied");
  assert.ok(agent.told.events.some((event) => event.delta?.includes("1815")), "the page has received it");
  assert.ok(!JSON.stringify(agent.messages).includes("1815"));
  assert.deepEqual(agent.messages.filter(({ role }) => role === "reasoning").map(({ content }) => content), [""]);
});

for (const [name, beginning] of Object.entries(beginnings)) {
  test(`a stop by the server after ${name}`, async () => {
    const agent = client({ path: "/kept/agent" });
    const done = ask(agent, `${beginning} wait`);
    await until(() => agent.told.events.length > 0);
    await fetch(`${address}/kept/agent/${agent.threadId}/stop`, { method: "POST" });
    assert.equal((await done).outcome.type, "cancelled");
  });
}

test("a page that goes stops the run", async () => {
  const agent = client({ fetch });
  const done = ask(agent, "text call wait").catch(() => {});
  await until(() => agent.told.events.some(({ type }) => type === "TOOL_CALL_END"));
  agent.abortRun();
  await done;
  // The thread is free once the run has ended.
  const again = client({ threadId: agent.threadId });
  await until(() => ask(again, "text").then(() => true, () => false));
  assert.equal(again.told.outcome.type, "success");
});

test("an approval is answered, and the run goes on", async () => {
  for (const [payload, result] of [[{ approved: true }, 'paid Bob "B"'], [{ approved: false, reason: "no" }, "denied by approval: no"], [{ approved: true, editedArgs: { to: "Eve" } }, "paid Eve"], ["approve", 'paid Bob "B"']]) {
    const agent = client();
    const { outcome } = await ask(agent, "text call pay; text");
    assert.equal(outcome.type, "interrupt");
    const [interrupt] = outcome.interrupts;
    assert.equal(interrupt.toolCallId, "call_0");
    await assert.rejects(ask(agent, "And now?"), /pending interrupt/);
    agent.messages.pop();
    const resumed = await ask(agent, undefined, { resume: [{ interruptId: interrupt.id, status: "resolved", payload }] });
    assert.equal(resumed.outcome.type, "success");
    assert.ok(agent.messages.some(({ role, content }) => role === "tool" && content.includes(result)), JSON.stringify(agent.messages));
    assert.equal(answers(agent), "Everest is high.|Everest is high.");
  }
});

test("a question is answered, wrongly, rightly and late", async () => {
  const agent = client();
  const { outcome } = await ask(agent, "call paint");
  const [{ id, responseSchema }] = outcome.interrupts;
  assert.deepEqual(responseSchema.enum, ["red", "blue"]);
  const answer = (payload) => ask(agent, undefined, { resume: [{ interruptId: id, status: "resolved", payload }] });
  await assert.rejects(answer("green"), /422.*allowed are/);
  assert.equal((await answer("red")).outcome.type, "success");
  await assert.rejects(answer("red"), /404|409/);
});

test("two approvals of one turn, and one that is cancelled", async () => {
  const agent = client();
  const { outcome } = await ask(agent, "call pay call paint");
  assert.equal(outcome.interrupts.length, 2);
  const resume = outcome.interrupts.map(({ id, reason }) =>
    reason === "approval" ? { interruptId: id, status: "cancelled" } : { interruptId: id, status: "resolved", payload: "blue" });
  assert.equal((await ask(agent, undefined, { resume })).outcome.type, "success");
});

test("a sub-agent answers, asks, and fails", async () => {
  for (const [task, end] of [["text", "SUBAGENT_FINISHED"], ["code", "SUBAGENT_ERROR"]]) {
    const agent = client();
    assert.equal((await ask(agent, `call writer ${task}`)).outcome.type, "success");
    assert.ok(agent.told.events.some(({ type }) => type === end));
    assert.ok(!JSON.stringify(agent.messages).includes("1815"));
  }
  const agent = client();
  const { outcome } = await ask(agent, "call writer call_pay");
  const [{ id, subagentRunId }] = outcome.interrupts;
  assert.ok(agent.told.events.some((event) => event.type === "SUBAGENT_STARTED" && event.subagentRunId === subagentRunId));
  const resumed = await ask(agent, undefined, { resume: [{ interruptId: id, status: "resolved", payload: { approved: true } }] });
  assert.equal(resumed.outcome.type, "success");
});

test("another agent takes the conversation over", async () => {
  const agent = client();
  assert.equal((await ask(agent, "call transfer_to_clerk; text")).outcome.type, "success");
});

test("several messages of one thread, whose calls have the same ids", async () => {
  const agent = client();
  for (let turn = 0; turn < 3; turn += 1) assert.equal((await ask(agent, "call fail; call fail; text")).outcome.type, "success");
  const calls = agent.messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ id }) => id));
  assert.equal(new Set(calls).size, 6);
});

test("a thread of another owner, and bodies that are wrong", async () => {
  const agent = client();
  await ask(agent, "text");
  const stranger = client({ threadId: agent.threadId, headers: { "x-user": "eve" } });
  await assert.rejects(ask(stranger, "text"), /404/);
});
