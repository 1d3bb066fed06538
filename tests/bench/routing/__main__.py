"""`python -m tests.bench.routing simulate|measure`: first tokens and computed tokens of each policy.

`measure` needs Linux, whose loopback interface has every address of 127.0.0.0/8. ENVOY and SMG name the programs, and
each caller has one of its own; with SMG, TOKENIZER names the folder of the model's tokenizer.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from tests.bench.routing import cluster, measured
from tests.bench.routing.load import LoadShape, arrivals_of
from tests.bench.routing.policies import CacheAware, Estimated, LeastRequests, Policy, RingHash, RoundRobin
from tests.bench.routing.simulated_replica import Costs, Room
from tests.bench.routing.simulation import Result, Simulation

REPLICAS = 3
PORT = 50752
PROXY_PORT = 50780
PROXY_START_S = 8.0
STEP_S, TOKEN_S = 0.01, 0.001
POLICIES: dict[str, Callable[[int, int], Policy]] = {
    "round_robin": RoundRobin,
    "least_requests": LeastRequests,
    "ring_hash": partial(RingHash, bound=1.25),
    "cache_aware": CacheAware,
    "ours": Estimated,
    "ours_without_news": Estimated,
    "ours_frozen_news": Estimated,
}


def main() -> None:
    """Entry point."""
    arguments = _read_arguments()
    shape = LoadShape(
        arguments.sharing,
        arguments.prefixes,
        arguments.rate,
        arguments.requests,
        arguments.prompt_tokens,
        arguments.output_tokens,
    )
    print(  # noqa: T201
        f"sharing {shape.sharing:.0%}, {shape.prefixes} beginnings of {shape.working_set_tokens} tokens together, "
        f"{shape.rate:g} requests/s, {shape.requests} requests"
    )
    names = arguments.policies.split(",")
    if arguments.mode == "simulate":
        for name in names:
            _print(name, simulate(name, shape, arguments.seed, arguments.callers))
    else:
        asyncio.run(measure(names, shape, arguments))


def simulate(name: str, shape: LoadShape, seed: int, callers: int = 2) -> Result:
    """Return what a load meets with a policy, in virtual time."""
    policies = [POLICIES[name](REPLICAS, caller) for caller in range(callers)]
    costs = Costs(STEP_S, TOKEN_S)
    simulation = Simulation(arrivals_of(shape, seed), policies, REPLICAS, room=Room(), costs=costs)
    return simulation.run(has_news=name == "ours")


async def measure(names: list[str], shape: LoadShape, arguments: argparse.Namespace) -> None:
    """Measure each policy over fresh replicas, so that none finds what another one has cached."""
    arrivals = arrivals_of(shape, arguments.seed)
    texts = measured.Texts(arguments.seed, round(shape.sharing * shape.prompt_tokens))
    window = measured.Window(*map(float, arguments.window.split(",")))
    for name in names:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            addresses = await asyncio.to_thread(_start_replicas, stack, folder, arguments)
            senders = await stack.enter_async_context(_senders(name, addresses, folder, arguments))
            result, failed = await measured.send_all(senders, arrivals, texts, addresses, window)
            _print(name, result, failed)


def _start_replicas(stack: AsyncExitStack, folder: Path, arguments: argparse.Namespace) -> list[str]:
    addresses = cluster.replica_addresses(REPLICAS, PORT)
    settings = {"METRICS_PORT": str(measured.METRICS_PORT), "PARKED_MIB": "450", "QUEUE_CAPACITY": "1000"}
    if arguments.tokenizer:
        settings |= {"VLLM_PROTOCOL": "true", "VLLM_TOKENIZER_FOLDER": arguments.tokenizer}
    log = folder / "replicas.log"
    for address in addresses:
        command, environment = cluster.replica_command(address, settings, is_paced=not arguments.real)
        environment |= {"PACED_STEP_S": str(STEP_S), "PACED_TOKEN_S": str(TOKEN_S)}
        stack.enter_context(cluster.running(command, environment, log))
    for address in addresses:
        cluster.wait_until_serving(address, log)
    return addresses


@asynccontextmanager
async def _senders(
    name: str, addresses: list[str], folder: Path, arguments: argparse.Namespace
) -> AsyncIterator[list[measured.Sender]]:
    if name in ("ours", "ours_without_news", "ours_frozen_news"):
        interval_s = 60.0 if name == "ours_without_news" else 0.25
        frozen = measured.Window(*map(float, arguments.window.split(","))) if name == "ours_frozen_news" else None
        routed = measured.routed_senders(addresses, arguments.callers, interval_s, frozen)
        async with routed as senders:
            yield senders
    elif name == "round_robin":
        async with measured.grpc_senders([f"ipv4:{','.join(addresses)}"] * arguments.callers) as senders:
            yield senders
    else:
        ports = [PROXY_PORT + 2 * caller for caller in range(arguments.callers)]
        with ExitStack() as stack:
            for port in ports:
                command = _proxy(name, port, addresses, folder, arguments)
                stack.enter_context(cluster.running(command, {}, folder / f"proxy-{port}.log"))
            await asyncio.sleep(PROXY_START_S)
            hosts = [f"127.0.0.1:{port}" for port in ports]
            opened = measured.http_senders(hosts) if name == "cache_aware" else measured.grpc_senders(hosts)
            async with opened as senders:
                yield senders


def _proxy(name: str, port: int, addresses: list[str], folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Return the command of a proxy, which also takes the port after its own."""
    if name == "cache_aware":
        command = [arguments.smg, "launch", "--host", "127.0.0.1", "--port", str(port), "--backend", "vllm"]
        command += ["--policy", "cache_aware", "--prometheus-port", str(port + 1)]
        return [*command, "--worker-urls", *(f"grpc://{address}" for address in addresses)]
    policy = {"least_requests": "LEAST_REQUEST", "ring_hash": "RING_HASH"}[name]
    config = folder / f"envoy-{port}.json"
    config.write_text(cluster.envoy_config(addresses, port, policy))
    return [arguments.envoy, "-c", str(config), "--base-id", str(port), "-l", "warning", "--concurrency", "1"]


def _print(name: str, result: Result, failed: int = 0) -> None:
    print(  # noqa: T201
        f"  {name:18} first token p50 {result.percentile(0.5):7.2f} s, p95 {result.percentile(0.95):7.2f} s; "
        f"{result.computed_tokens:8d} tokens computed; {result.output_tokens / result.duration_s:6.1f} tokens/s; "
        f"{failed} failed",
        flush=True,
    )


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("simulate", "measure"))
    parser.add_argument("--sharing", type=float, default=0.9)
    parser.add_argument("--prefixes", type=int, default=12)
    parser.add_argument("--rate", type=float, default=6.0)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policies", default="round_robin,ours,ours_without_news")
    parser.add_argument(
        "--window", default="0,inf", help="seconds whose first tokens are reported, and in which ours_frozen_news is"
    )
    parser.add_argument("--real", action="store_true", help="the engine computes, instead of taking its time")
    parser.add_argument("--callers", type=int, default=2, help="orchestrators, or proxies with a caller each")
    parser.add_argument("--envoy", default="envoy")
    parser.add_argument("--smg", default="smg")
    parser.add_argument("--tokenizer", default="", help="folder of the tokenizer, which SMG needs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
