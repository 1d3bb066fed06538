"""What happens to the hosts while calls run, each by its name."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from random import Random

import grpc

from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from tests.soak.replicas.database import Database
from tests.soak.replicas.system import COUNTS, System, say

RESTARTED_S = 2.0
AWAY_S = 20.0
ZERO_S = 30.0
BUSY_WITHIN_S, LOOK_S = 5.0, 0.05
PROBE_S = 10.0


@dataclass(frozen=True, slots=True)
class Stage:
    """What events happen to."""

    system: System
    database: Database
    random: Random
    settle_s: float

    def choose(self, area):
        return self.random.choice(self.system.instances[area])

    def choose_busy(self):
        """Return the replica of inference that decodes most, or any after a time in which none does."""
        end_s = time.monotonic() + BUSY_WITHIN_S
        while time.monotonic() < end_s:
            running = {load_of(one): one for one in self.system.instances["inference"]}
            if (most := max(running)) > 0:
                return running[most]
            time.sleep(LOOK_S)
        return self.choose("inference")


@dataclass(frozen=True, slots=True)
class Happened:
    """One event, and when it was."""

    kind: str
    began_s: float
    ended_s: float


def load_of(instance):
    """Return how many sequences a replica decodes."""
    with grpc.insecure_channel(instance.address) as channel:
        stub = inference_service_pb2_grpc.InferenceServiceStub(channel)
        return stub.GetLoad(inference_service_pb2.GetLoadRequest(), timeout=PROBE_S).running_sequences


def roll_out(stage):
    """Replace every instance, one after another."""
    for area in ("inference", "orchestrator", "constraint", "context", "rerank", "tools"):
        for instance in list(stage.system.instances[area]):
            stage.system.replace(instance, stage.random)


def drain(stage):
    """Let a replica go, and only then start another."""
    stage.system.retire(stage.choose_busy(), stage.random)
    new = stage.system.launch("inference")
    new.wait_until_ready()
    stage.system.enlist(new)


def kill(stage):
    """Kill a replica, which starts again soon."""
    _kill(stage.choose_busy())


def kill_orchestrator(stage):
    """Kill an orchestrator, which starts again soon."""
    _kill(stage.choose("orchestrator"))


def _kill(instance):
    instance.send(signal.SIGKILL)
    time.sleep(RESTARTED_S)
    instance.start()
    instance.wait_until_ready()


def scale_to_zero(stage):
    """Let every replica go, and start others after a time without any."""
    for instance in list(stage.system.instances["inference"]):
        stage.system.retire(instance, stage.random)
    time.sleep(ZERO_S)
    new = [stage.system.launch("inference") for _ in range(COUNTS["inference"])]
    for instance in new:
        instance.wait_until_ready()
        stage.system.enlist(instance)


def cut(stage):
    """Pull the cable of a replica for a time."""
    host = stage.choose_busy().host
    host.cut()
    time.sleep(AWAY_S)
    host.join()


def freeze(stage):
    """Stop a replica for a time."""
    instance = stage.choose_busy()
    instance.send(signal.SIGSTOP)
    time.sleep(AWAY_S)
    instance.send(signal.SIGCONT)


def fail_over(stage):
    """Lose the primary of the database; later it has a standby again."""
    stage.database.fail_over()
    time.sleep(AWAY_S)
    stage.database.repair()


EVENTS = {
    "rollout": roll_out,
    "drain": drain,
    "kill": kill,
    "zero": scale_to_zero,
    "cut": cut,
    "freeze": freeze,
    "failover": fail_over,
    "orchestrator-kill": kill_orchestrator,
}
DEFAULTS = {
    "rollout": 10,
    "drain": 10,
    "kill": 20,
    "zero": 1,
    "failover": 1,
    "cut": 3,
    "freeze": 3,
    "orchestrator-kill": 3,
}


def play(stage, counts):
    """Let every event happen as often as counted, in any order, and return when each happened."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    stage.random.shuffle(kinds)
    happened = []
    for number, kind in enumerate(kinds, 1):
        say(f"  {number} of {len(kinds)}: {kind}")
        began_s = time.monotonic()
        EVENTS[kind](stage)
        time.sleep(stage.settle_s)
        happened.append(Happened(kind, began_s, time.monotonic()))
        time.sleep(stage.settle_s)
    return happened
