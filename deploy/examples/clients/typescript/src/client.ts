#!/usr/bin/env node
// A program that uses pagantic by gRPC: `client COMMAND [TEXT]`. Without arguments it lists the commands.
import { COMMANDS } from "./commands.js";
import { Connection } from "./connection.js";
import { EXIT_USAGE, Failure, isServiceError } from "./failure.js";
import { note } from "./terminal.js";

const USAGE = `usage: client COMMAND [TEXT]
  chat TEXT     stream the answer to a text
  extract TEXT  get a person's name and age out of a text, as JSON that satisfies a schema
  vote TEXT     have five samples vote how severe an incident is
  resume TEXT   drop the connection in the middle of an answer, and go on where it broke off
  cancel TEXT   begin a long answer, cancel it, and see that it has stopped
  error         make two requests that fail, and say how
environment: PAGANTIC_ADDRESS (localhost:50051, or https://host:port), PAGANTIC_API_KEY, PAGANTIC_TLS_CA_FILE,
  PAGANTIC_TIMEOUT_S (120)`;

function connect(): Connection | undefined {
  try {
    return new Connection();
  } catch (error) {
    note(`client: ${error instanceof Error ? error.message : error}`);
    return undefined;
  }
}

async function main([name = "", ...texts]: string[]): Promise<number> {
  const command = COMMANDS.get(name);
  if (!command || texts.length !== (name === "error" ? 0 : 1)) {
    note(USAGE);
    return EXIT_USAGE;
  }
  const connection = connect();
  if (!connection) return EXIT_USAGE;
  try {
    await command(connection, texts[0] ?? "");
    return 0;
  } catch (error) {
    const failure = isServiceError(error) ? Failure.ofStatus(error) : error;
    if (!(failure instanceof Failure)) throw failure;
    failure.show();
    return failure.exitCode;
  } finally {
    connection.stub.close();
  }
}

process.stdout.on("error", () => process.exit()); // A reader that is gone is no failure.
process.exitCode = await main(process.argv.slice(2));
