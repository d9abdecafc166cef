// A bank on the package `@modelcontextprotocol/sdk` of npm, which speaks the old era. `scripts/mcp-peers` starts it.

import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";

const server = new McpServer({ name: "bank", version: "1" });
const text = (text) => ({ content: [{ type: "text", text }] });

server.registerTool(
  "balance",
  { description: "Returns the balance", outputSchema: { savings: z.number() } },
  async () => ({ ...text('{"savings":100}'), structuredContent: { savings: 100 } }),
);
server.registerTool(
  "transfer",
  { description: "Sends money", inputSchema: { to: z.string(), amount: z.number().int() } },
  async ({ amount }) => {
    const requestedSchema = {
      type: "object",
      properties: { account: { type: "string", enum: ["savings", "giro"] }, note: { type: "string", default: "none" } },
      required: ["account"],
    };
    const answer = await server.server.elicitInput({ message: "From which account?", requestedSchema });
    return text(`sent ${amount} from ${answer.content?.account}`);
  },
);
server.registerTool("fail", { description: "Fails" }, async () => {
  throw new Error("out of money");
});
server.registerTool("picture", { description: "Returns a picture" }, async () => ({
  content: [{ type: "image", mimeType: "image/png", data: Buffer.alloc(12288).toString("base64") }],
}));
server.registerTool("audit", { description: "Reports progress, and waits until it is cancelled" }, async (extra) => {
  for (let progress = 1; progress <= 3; progress++) {
    const params = { progressToken: extra._meta?.progressToken, progress, total: 3 };
    await extra.sendNotification({ method: "notifications/progress", params });
  }
  await new Promise((resolve) => extra.signal.addEventListener("abort", resolve));
  console.error("the audit was cancelled");
  return text("done");
});

await server.connect(new StdioServerTransport());
