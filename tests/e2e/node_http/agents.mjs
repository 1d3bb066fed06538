// Loops of agents in Node that others wrote, each of which runs one tool, before one gateway with a scripted model.
// Usage: node agents.mjs http://HOST:PORT; prints one JSON document of what each of them saw.
import { createOpenAI } from "@ai-sdk/openai";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const gateway = process.argv[2];
const model = "any";
const prompt = "What time is it?";
const description = "Tells the time of a zone.";

async function withAiSdk() {
  const openai = createOpenAI({ baseURL: `${gateway}/v1`, apiKey: "any" });
  const zones = [];
  const clock = tool({
    description,
    inputSchema: z.object({ zone: z.string() }),
    execute: async ({ zone }) => {
      zones.push(zone);
      return "noon";
    },
  });
  const turn = { prompt, tools: { clock }, stopWhen: stepCountIs(3), maxRetries: 0 };
  const seen = {};
  for (const [name, made] of Object.entries({ responses: openai(model), chat: openai.chat(model) })) {
    seen[name] = (await generateText({ model: made, ...turn })).text;
    seen[`${name} streamed`] = await streamText({ model: made, ...turn }).text;
  }
  return { ...seen, zones };
}

async function withAnthropic() {
  const client = new Anthropic({ baseURL: gateway, apiKey: "any", maxRetries: 0 });
  const zones = [];
  const clock = {
    type: "custom",
    name: "clock",
    description,
    input_schema: { type: "object", properties: { zone: { type: "string" } }, required: ["zone"] },
    parse: (input) => input,
    run: ({ zone }) => {
      zones.push(zone);
      return "noon";
    },
  };
  const messages = [{ role: "user", content: prompt }];
  const last = await client.beta.messages.toolRunner({ model, max_tokens: 100, messages, tools: [clock] });
  return { text: last.content.map((block) => block.text ?? "").join(""), zones };
}

process.stdout.write(JSON.stringify({ aiSdk: await withAiSdk(), anthropic: await withAnthropic() }));
