// Uses `pagantic mcp` over one transport as a program of others would, and prints what it saw as JSON.
// usage: client.mjs http URL | client.mjs stdio COMMAND ARGUMENTS...
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [kind, target, ...args] = process.argv.slice(2);
const transport =
  kind === "http"
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args, env: process.env, stderr: "ignore" });
const client = new Client({ name: "e2e", version: "1" });
await client.connect(transport);

const tools = (await client.listTools()).tools.map((tool) => tool.name);
const calculated = await client.callTool({ name: "calculator", arguments: { expression: "17*23" } });
const schema = {
  type: "object",
  properties: { color: { enum: ["red", "green", "blue"] } },
  required: ["color"],
  additionalProperties: false,
};
const extracted = await client.callTool({
  name: "extract",
  arguments: { text: "Which color is a ripe tomato?", schema, max_tokens: 60, temperature: 0 },
});
const reports = [];
const asked = await client.callTool(
  { name: "ask", arguments: { question: "Say hello.", tools: [], max_tokens: 40 } },
  undefined,
  { onprogress: (report) => reports.push(report.progress) },
);
const leaving = new AbortController();
const cancelled = client
  .callTool(
    { name: "ask", arguments: { question: "Count to a thousand.", tools: [], max_tokens: 2000 } },
    undefined,
    { signal: leaving.signal, onprogress: () => leaving.abort("enough") },
  )
  .then(() => "answered", () => "cancelled");
const ended = await cancelled;
const wrong = await client.callTool({ name: "ask", arguments: {} });
const resources = (await client.listResources()).resources.map((resource) => resource.name);
const prompts = (await client.listPrompts()).prompts.map((prompt) => prompt.name);
await client.close();
console.log(
  JSON.stringify({ tools, calculated, extracted, asked, reports, ended, wrong, resources, prompts }),
);
