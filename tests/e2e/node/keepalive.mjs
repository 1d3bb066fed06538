// Watches the health of servers for a while, each with several intervals of keepalive.
// Usage: node keepalive.mjs SECONDS HOST:PORT...; prints the watches that were cut, as a JSON list.
import grpc from "@grpc/grpc-js";
import reflectionPackage from "grpc-js-reflection-client";

const [seconds, ...addresses] = process.argv.slice(2);
const credentials = grpc.credentials.createInsecure();
const cut = [];
for (const address of addresses) {
  const reflection = new reflectionPackage.GrpcReflection(address, credentials, {}, "v1alpha");
  const descriptor = await reflection.getDescriptorBySymbol("grpc.health.v1.Health");
  const { Health } = grpc.loadPackageDefinition(descriptor.getPackageDefinition({})).grpc.health.v1;
  for (const interval of [1_000, 5_000, 20_000]) {
    const options = { "grpc.keepalive_time_ms": interval, "grpc.use_local_subchannel_pool": 1 };
    const watch = new Health(address, credentials, options).Watch({});
    watch.on("data", () => {});
    watch.on("end", () => cut.push({ address, interval, reason: "ended" }));
    watch.on("error", (error) => cut.push({ address, interval, reason: error.message }));
  }
}
await new Promise((resolve) => setTimeout(resolve, Number(seconds) * 1000));
console.log(JSON.stringify(cut));
process.exit(0);
