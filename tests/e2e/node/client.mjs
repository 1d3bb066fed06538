// A client without any proto file: everything it knows of the services it asks them.
// Usage: node client.mjs HOST:PORT; prints one JSON document of what it saw.
import grpc from "@grpc/grpc-js";
import reflectionPackage from "grpc-js-reflection-client";

const address = process.argv[2];
const credentials = grpc.credentials.createInsecure();
const reflection = new reflectionPackage.GrpcReflection(address, credentials, {}, "v1alpha");
const loading = { keepCase: true, enums: String, longs: String, defaults: false, oneofs: true };
const deadline = () => ({ deadline: Date.now() + 120_000 });

async function stubOf(service) {
  const descriptor = await reflection.getDescriptorBySymbol(service);
  const definition = grpc.loadPackageDefinition(descriptor.getPackageDefinition(loading));
  const Stub = service.split(".").reduce((scope, name) => scope[name], definition);
  return new Stub(address, credentials);
}

function callUnary(stub, method, request) {
  return new Promise((resolve, reject) =>
    stub[method](request, deadline(), (error, response) => (error ? reject(error) : resolve(response))),
  );
}

function readStream(stub, method, request) {
  return new Promise((resolve, reject) => {
    const events = [];
    const call = stub[method](request, deadline());
    call.on("data", (event) => events.push(event));
    call.on("error", reject);
    call.on("end", () => resolve(events));
  });
}

const schema = {
  type: "object",
  properties: { color: { enum: ["red", "green", "blue"] }, is_warm: { type: "boolean" } },
  required: ["color", "is_warm"],
  additionalProperties: false,
};
const structured = {
  mode: "MODE_STRUCTURED",
  messages: [{ role: "ROLE_USER", content: "Which color is a ripe tomato?" }],
  output: { schema_json: JSON.stringify(schema) },
  hints: { max_tokens: 60, temperature: 0, seed: "1" },
};

const services = await reflection.listServices();
const health = await callUnary(await stubOf("grpc.health.v1.Health"), "Check", {});
const orchestrator = await stubOf("pagantic.orchestrator.v1.OrchestratorService");
const events = await readStream(orchestrator, "ExecuteStream", structured);
const response = await callUnary(orchestrator, "Execute", structured);
const refusal = await callUnary(orchestrator, "Execute", { mode: "MODE_CHAT" }).catch((error) => error);
console.log(
  JSON.stringify({
    services,
    health: health.status,
    response,
    kinds: events.map((event) => event.event),
    streamed: events[events.length - 1].completed.response,
    refusal: { code: refusal.code, details: refusal.details },
  }),
);
process.exit(0);
