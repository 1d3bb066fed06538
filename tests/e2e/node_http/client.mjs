// Clients in Node that others wrote, before one gateway.
// Usage: node client.mjs http://HOST:PORT; prints one JSON document of what each of them saw.
import { createOpenAI } from "@ai-sdk/openai";
import Anthropic from "@anthropic-ai/sdk";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { z } from "zod";

const gateway = process.argv[2];
const model = "gpt-4o";
const question = "Which color is a ripe tomato?";
const settings = { baseURL: `${gateway}/v1`, apiKey: "any" };
const sampling = { max_tokens: 24, temperature: 0 };
const color = {
  type: "object",
  properties: { color: { enum: ["red", "green", "blue"] } },
  required: ["color"],
  additionalProperties: false,
};

async function withOpenai() {
  const client = new OpenAI({ ...settings, maxRetries: 0 });
  const messages = [{ role: "user", content: question }];
  const whole = await client.chat.completions.create({ model, messages, ...sampling });
  const said = [];
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true, ...sampling })) {
    said.push(chunk.choices[0]?.delta?.content ?? "");
  }
  const format = { type: "json_schema", json_schema: { name: "color", schema: color, strict: true } };
  const parsed = await client.chat.completions.parse({ model, messages, response_format: format, ...sampling });

  const calls = [];
  const weather = ({ city }) => {
    calls.push(city);
    return `It is sunny in ${city}.`;
  };
  const runner = client.chat.completions.runTools({
    model,
    messages: [{ role: "user", content: "What is the weather in Paris?" }],
    tool_choice: { type: "function", function: { name: "weather" } },
    tools: [
      {
        type: "function",
        function: {
          name: "weather",
          description: "Tells the weather of a city.",
          function: weather,
          parse: JSON.parse,
          parameters: { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"] },
        },
      },
    ],
    ...sampling,
    max_tokens: 60,
  });
  await runner.done();

  const response = await client.responses.create({ model, input: question, max_output_tokens: 24, temperature: 0 });
  const events = [];
  const next = { model, input: "And a banana?", previous_response_id: response.id, stream: true };
  for await (const event of await client.responses.create({ ...next, max_output_tokens: 24 })) {
    events.push(event.type);
  }
  const refusal = await client.chat.completions
    .create({ model, messages, temperature: 9 })
    .catch((error) => ({ kind: error.constructor.name, status: error.status, code: error.code }));
  return {
    whole: whole.choices[0].message.content,
    streamed: said.join(""),
    parsed: parsed.choices[0].message.parsed ?? JSON.parse(parsed.choices[0].message.content),
    calls,
    response: response.output_text,
    events,
    refusal,
    vectors: (await client.embeddings.create({ model, input: ["a", "b"] })).data.length,
  };
}

async function withAnthropic() {
  const client = new Anthropic({ baseURL: gateway, apiKey: "any", maxRetries: 0 });
  const asked = { model, max_tokens: 24, temperature: 0, messages: [{ role: "user", content: question }] };
  const whole = await client.messages.create(asked);
  const streamed = await client.messages.stream(asked).finalText();
  const refusal = await client.messages
    .create({ ...asked, messages: [] })
    .catch((error) => ({ kind: error.constructor.name, status: error.status }));
  return { whole: whole.content[0].text, streamed, stop_reason: whole.stop_reason, refusal };
}

async function withOllama() {
  const client = new Ollama({ host: gateway });
  const messages = [{ role: "user", content: question }];
  const options = { temperature: 0, num_predict: 24 };
  const said = [];
  for await (const part of await client.chat({ model, messages, options, stream: true })) {
    said.push(part.message.content);
  }
  const whole = await client.chat({ model, messages, options, format: color });
  return { streamed: said.join(""), object: JSON.parse(whole.message.content) };
}

async function withTheAiSdk() {
  const provider = createOpenAI(settings);
  const seen = {};
  for (const [name, served] of Object.entries({ chat: provider.chat(model), responses: provider.responses(model) })) {
    const asked = { model: served, temperature: 0, maxRetries: 0 };
    const whole = await generateText({ ...asked, prompt: question, maxOutputTokens: 24 });
    const stream = streamText({ ...asked, prompt: question, maxOutputTokens: 24 });
    const said = [];
    for await (const text of stream.textStream) said.push(text);
    const schema = z.object({ color: z.enum(["red", "green", "blue"]) });
    const { object } = await generateObject({ ...asked, prompt: question, schema });
    const calls = [];
    await generateText({
      ...asked,
      prompt: "What is the weather in Paris?",
      maxOutputTokens: 60,
      toolChoice: "required",
      stopWhen: stepCountIs(1),
      tools: {
        weather: tool({
          description: "Tells the weather of a city.",
          inputSchema: z.object({ city: z.string().max(20) }),
          execute: async ({ city }) => {
            calls.push(city);
            return `It is sunny in ${city}.`;
          },
        }),
      },
    });
    seen[name] = { whole: whole.text, streamed: said.join(""), object, calls, usage: whole.usage };
  }
  return seen;
}

const seen = {
  openai: await withOpenai(),
  anthropic: await withAnthropic(),
  ollama: await withOllama(),
  aiSdk: await withTheAiSdk(),
};
console.log(JSON.stringify(seen));
