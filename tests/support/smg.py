"""SMG, the gateway, before replicas: a process with its log and metrics."""

import re

import httpx

from tests.bench.routing import cluster
from tests.support.killing import wait_until
from tests.support.ports import free_ports

# What SMG sends elsewhere on purpose, to warm replicas up, would make a test a matter of chance.
STEADY = ["--worker-warmup-secs", "0", "--worker-warmup-divert-every", "0"]


class Smg:
    """A gateway with cache-aware routing over replicas; `with` runs it."""

    def __init__(self, program, addresses, model, log):
        port, metrics_port = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self._metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"
        self._model = model
        self._workers = len(addresses)
        self._log = log
        self._command = [program, "launch", "--host", "127.0.0.1", "--port", str(port), "--backend", "vllm"]
        self._command += ["--policy", "cache_aware", *STEADY]
        self._command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
        self._command += ["--worker-urls", *(f"grpc://{address}" for address in addresses)]

    def __enter__(self):
        self._running = cluster.running(self._command, {}, self._log)
        self._running.__enter__()
        try:
            wait_until(self._is_ready, f"SMG routes: see {self._log}")
        except BaseException as error:
            self._running.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, *exc):
        return self._running.__exit__(*exc)

    def body(self, system, user, **fields):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return {"model": self._model, "messages": messages, "max_tokens": 4, "temperature": 0, **fields}

    def chat(self, system, user, **fields):
        """Return a whole answer."""
        reply = httpx.post(f"{self.url}/v1/chat/completions", json=self.body(system, user, **fields), timeout=60)
        reply.raise_for_status()
        return reply.json()

    def metric(self, name, **labels):
        """Return the sum of a metric over all that have these labels."""
        total = 0.0
        for line in httpx.get(self._metrics_url, timeout=10).text.splitlines():
            found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if found and found[1] == name and all(f'{key}="{value}"' in found[2] for key, value in labels.items()):
                total += float(found[3])
        return total

    def _is_ready(self):
        try:
            self.chat("x", "y")
            return self.metric("smg_kv_event_batches_total", disposition="snapshot") >= self._workers
        except httpx.HTTPError:
            return False
