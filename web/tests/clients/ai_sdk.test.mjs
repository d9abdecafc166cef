// Each kind of end, with `ai` 7 as `useChat` of React uses it.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { beginnings, load, newThread, start, until } from "./support.mjs";

const { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } = await load("ai");
let address, stop;
before(async () => ([address, stop] = await start("web_test_server")));
after(() => stop());

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => void (this.messages = [...this.messages, message]);
  popMessage = () => void (this.messages = this.messages.slice(0, -1));
  replaceMessage = (at, message) => void (this.messages = this.messages.with(at, message));
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {
  constructor({ path = "/chat", id = newThread(), headers, ...options } = {}) {
    const ends = [];
    super({
      id, state: new State(), transport: new DefaultChatTransport({ api: address + path, headers }),
      onFinish: (end) => void ends.push(end), ...options,
    });
    this.ends = ends;
  }
  get parts() { return this.lastMessage.parts; }
  get text() { return this.parts.filter(({ type }) => type === "text").map(({ text }) => text).join(""); }
  get calls() { return this.parts.filter(({ type }) => type === "dynamic-tool"); }
}

async function ask(chat, text) {
  await chat.sendMessage({ text });
  return chat;
}

test("an answer with reasoning, a failing tool and a denied one", async () => {
  const chat = await ask(new Chat(), "think text call fail call deny; text");
  assert.equal(chat.status, "ready");
  assert.equal(chat.ends[0].finishReason, "stop");
  assert.equal(chat.text, "Everest is high.Everest is high.");
  assert.deepEqual(chat.calls.map(({ state }) => state), ["output-error", "output-denied"]);
  assert.equal(chat.parts.find(({ type }) => type === "reasoning").text, "Let me see.");
});

for (const [kind, message] of [["broken", "internal error"], ["denied", "not on Sundays"], ["halted", "too many tokens"], ["timeout", "the run took too long"]]) {
  for (const [name, beginning] of Object.entries(beginnings)) {
    test(`the end ${kind} after ${name}`, async () => {
      const chat = await ask(new Chat(), `${beginning} fail ${kind}`);
      assert.equal(chat.status, "error");
      assert.equal(chat.error.message, message);
      if (chat.lastMessage?.role !== "assistant") return;
      assert.ok(!JSON.stringify(chat.parts).includes("10.0.0.7"));
      assert.ok(chat.parts.every(({ state }) => state !== "streaming" && state !== "input-streaming"), JSON.stringify(chat.parts));
    });
  }
}

test("a reply that a guard withholds is taken back", async () => {
  const seen = [];
  const chat = new Chat();
  const pushed = chat.state.replaceMessage;
  chat.state.replaceMessage = (at, message) => (seen.push(JSON.stringify(message)), pushed(at, message));
  await ask(chat, "text call fail; think code");
  assert.equal(chat.error.message, "no codes");
  assert.ok(seen.some((text) => text.includes("1815")), "the page has received it");
  assert.ok(!JSON.stringify(chat.messages).includes("1815"));
  assert.equal(chat.text, "Everest is high.");
});

for (const [name, beginning] of Object.entries(beginnings)) {
  test(`a stop by the server after ${name}`, async () => {
    const chat = new Chat({ path: "/kept/chat" });
    const done = ask(chat, `${beginning} wait`);
    await until(() => chat.status === "streaming" || chat.lastMessage?.role === "assistant");
    await fetch(`${address}/kept/chat/${chat.id}/stop`, { method: "POST" });
    await done;
    assert.equal(chat.status, "ready");
    assert.deepEqual([chat.ends.length, chat.ends[0].finishReason], [1, undefined]);
    // The client does not say that the server has sent an abort.
    const steps = await (await fetch(`${address}/kept/chat/${chat.id}/stream`)).text();
    assert.match(steps, /"type":"abort"\}\n\ndata: \[DONE\]\n\n$/);
  });
}

test("a page that goes stops the run", async () => {
  const chat = new Chat();
  const done = ask(chat, "text call wait");
  await until(() => chat.lastMessage?.role === "assistant" && chat.calls.length === 1);
  await chat.stop();
  await done;
  await until(async () => (await ask(new Chat({ id: chat.id }), "text")).status === "ready");
});

test("a page that is loaded again reads the message from its start", async () => {
  const chat = new Chat({ path: "/kept/chat" });
  const done = ask(chat, "text call wait");
  await until(() => chat.lastMessage?.role === "assistant" && chat.parts.some(({ type }) => type === "data-emitree-progress"));
  const again = new Chat({ path: "/kept/chat", id: chat.id });
  again.messages = [chat.messages[0]];
  const resumed = again.resumeStream();
  await until(() => again.lastMessage?.role === "assistant" && again.calls.length === 1);
  assert.deepEqual([again.lastMessage.id, again.text], [chat.lastMessage.id, chat.text]);
  await fetch(`${address}/kept/chat/${chat.id}/stop`, { method: "POST" });
  await Promise.all([done, resumed]);
  assert.deepEqual(again.lastMessage.parts, chat.lastMessage.parts);
  const nothing = new Chat({ path: "/kept/chat" });
  await nothing.resumeStream();
  assert.equal(nothing.status, "ready");
});

test("an approval is answered, and the message goes on", async () => {
  for (const [approved, state] of [[true, "output-available"], [false, "output-denied"]]) {
    const chat = new Chat({ sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses });
    await ask(chat, "text call pay; text");
    const [call] = chat.calls;
    assert.equal(call.state, "approval-requested");
    const id = chat.lastMessage.id;
    await chat.addToolApprovalResponse({ id: call.approval.id, approved, reason: "because" });
    await until(() => chat.ends.length === 2);
    assert.deepEqual([chat.messages.length, chat.lastMessage.id, chat.calls.length], [2, id, 1]);
    assert.equal(chat.calls[0].state, state);
    assert.equal(chat.text, "Everest is high.Everest is high.");
  }
});

test("two approvals are sent together, and one of a sub-agent is asked in its call", async () => {
  const chat = new Chat({ sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses });
  await ask(chat, "call pay call writer call_pay");
  assert.deepEqual(chat.calls.map(({ state }) => state), ["approval-requested", "approval-requested"]);
  for (const { approval } of chat.calls) await chat.addToolApprovalResponse({ id: approval.id, approved: true });
  await until(() => chat.ends.length === 2);
  assert.deepEqual(chat.calls.map(({ state }) => state), ["output-available", "output-available"]);
});

test("a question is answered, wrongly and rightly, and twice", async () => {
  const chat = await ask(new Chat(), "call paint");
  const { id, data } = chat.parts.find(({ type }) => type === "data-emitree-question");
  assert.deepEqual(data.schema.enum, ["red", "blue"]);
  const answer = (value) => chat.sendMessage(undefined, { body: { answers: { [id]: value } } });
  await answer("green");
  assert.match(chat.error.message, /allowed are/);
  await answer("red");
  assert.equal(chat.status, "ready");
  assert.equal(chat.calls[0].output, "painted red");
  assert.equal(chat.messages.length, 2);
  await answer("red");
  assert.equal(chat.status, "error");
});

test("a thread of another owner is refused", async () => {
  const chat = await ask(new Chat(), "text");
  const stranger = await ask(new Chat({ id: chat.id, headers: { "x-user": "eve" } }), "text");
  assert.match(stranger.error.message, /there is no thread/);
});
