import { randomUUID } from "node:crypto";
import { Answer } from "./answer.js";
import type { Connection } from "./connection.js";
import { Failure, isServiceError } from "./failure.js";
import type { ExecutionEvent__Output } from "./gen/pagantic/orchestrator/v1/ExecutionEvent.js";
import type { GetExecutionRequest } from "./gen/pagantic/orchestrator/v1/GetExecutionRequest.js";
import type { GetExecutionResponse__Output } from "./gen/pagantic/orchestrator/v1/GetExecutionResponse.js";
import type { Mode } from "./gen/pagantic/orchestrator/v1/Mode.js";
import type { SystemRequest } from "./gen/pagantic/orchestrator/v1/SystemRequest.js";
import type { SystemResponse__Output } from "./gen/pagantic/orchestrator/v1/SystemResponse.js";
import { makeEndError, readThroughLosses } from "./resume.js";
import { note, write } from "./terminal.js";

type Command = (connection: Connection, text: string) => Promise<void>;

const PERSON = {
  type: "object",
  properties: { name: { type: "string", maxLength: 40 }, age: { type: "integer", minimum: 0, maximum: 150 } },
  required: ["name", "age"],
  additionalProperties: false,
};
const INCIDENT = {
  type: "object",
  properties: { severity: { enum: ["low", "medium", "high"] } },
  required: ["severity"],
  additionalProperties: false,
};
const ANSWER_TOKENS = 80;
const LONG_ANSWER_TOKENS = 1000;
// Pieces of text before a connection is dropped, or an execution cancelled.
const ENOUGH_PIECES = 5;

/** Return a request with an id of its own, by which it can be cancelled, followed and sent again. */
function makeRequest(mode: keyof typeof Mode, text: string, maxTokens: number): SystemRequest {
  const requestId = randomUUID();
  note(`request: ${requestId}`);
  return { requestId, mode, messages: [{ role: "ROLE_USER", content: text }], hints: { maxTokens } };
}

/** Return a chat without tools: its answer is one text. */
function makeChat(text: string, maxTokens: number): SystemRequest {
  const request = makeRequest("MODE_CHAT", text, maxTokens);
  return { ...request, hints: { maxTokens, toolChoice: { mode: "TOOL_CHOICE_MODE_NONE" } } };
}

/** Return a response that succeeded. */
function checked(response: SystemResponse__Output | undefined): SystemResponse__Output {
  if (!response) throw makeEndError();
  if (response.error) throw Failure.ofResponse(response.error);
  return response;
}

async function execute(connection: Connection, request: SystemRequest): Promise<SystemResponse__Output> {
  return checked(await connection.call(connection.stub.Execute, request));
}

const chat: Command = async (connection, text) => {
  const answer = new Answer();
  const events = connection.stub.ExecuteStream(
    makeChat(text, ANSWER_TOKENS),
    connection.metadata,
    connection.options(),
  );
  for await (const event of events as AsyncIterable<ExecutionEvent__Output>) answer.take(event);
  write("\n");
  const response = checked(answer.response);
  const reason = response.finishReason.replace("FINISH_REASON_", "");
  note(`finished: ${reason}, ${response.tokenUsage?.outputTokens} tokens`);
};

const extract: Command = async (connection, text) => {
  const request = makeRequest("MODE_STRUCTURED", text, 100);
  const response = await execute(connection, { ...request, output: { schemaJson: JSON.stringify(PERSON) } });
  write(response.structuredOutputJson + "\n");
  note(`guarantee: ${response.validation?.guarantee.replace("GUARANTEE_", "")}`);
};

const vote: Command = async (connection, text) => {
  const request = makeRequest("MODE_REDUNDANT", text, 40);
  const output = { schemaJson: JSON.stringify(INCIDENT) };
  const response = await execute(connection, { ...request, output, voting: { n: 5 } });
  const { severity } = JSON.parse(response.structuredOutputJson) as { severity: string };
  write(`label: ${severity}\nconfidence: ${response.confidence?.toFixed(2)}\n`);
};

const resume: Command = async (connection, text) => {
  const request = makeChat(text, ANSWER_TOKENS);
  // No deadline of a call binds a request in the background; its own timeout does.
  const timeout = { seconds: Math.ceil(connection.timeoutMs / 1000) };
  const inBackground = { ...request, background: true, hints: { ...request.hints, timeout } };
  const response = await readThroughLosses(connection, inBackground, ENOUGH_PIECES);
  write("\n");
  checked(response);
};

/** Begin a long answer and cancel it; leaving the stream would do it as well. */
const cancel: Command = async (connection, text) => {
  const request = makeChat(text, LONG_ANSWER_TOKENS);
  const { requestId } = request;
  let pieces = 0;
  let response: SystemResponse__Output | null | undefined;
  const events = connection.stub.ExecuteStream(request, connection.metadata, connection.options());
  for await (const event of events as AsyncIterable<ExecutionEvent__Output>) {
    if (event.contentDelta && ++pieces === ENOUGH_PIECES) {
      await connection.call(connection.stub.CancelExecution, { requestId });
    }
    response = event.completed?.response;
  }
  const { execution } = await connection.call<GetExecutionRequest, GetExecutionResponse__Output>(
    connection.stub.GetExecution,
    { requestId },
  );
  write(`state: ${execution?.state?.current.replace("LIFECYCLE_STATE_", "")}\n`);
  write(`error: ${response?.error?.code.replace("ERROR_CODE_", "")}\n`);
  write(`output tokens: ${response?.tokenUsage?.outputTokens} of ${LONG_ANSWER_TOKENS}\n`);
};

/** Make two requests that fail: one that is refused by a status, and one whose response has an error. */
const fail: Command = async (connection) => {
  const refused = makeChat("Hello", 8);
  try {
    await execute(connection, { ...refused, hints: { ...refused.hints, temperature: 9 } });
  } catch (error) {
    if (!isServiceError(error)) throw error;
    Failure.ofStatus(error).show();
  }
  await execute(connection, makeRequest("MODE_STRUCTURED", "Hello", 8));
};

export const COMMANDS = new Map<string, Command>(
  Object.entries({ chat, extract, vote, resume, cancel, error: fail }),
);
