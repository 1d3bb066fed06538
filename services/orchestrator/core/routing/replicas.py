"""One orchestrator's view of the replicas of a service, and its choice of a replica for each call.

Theory of operation. The choice minimizes the estimated time to the first token. The estimate adds the prompt tokens
waiting at a replica, the uncached part of the call's prompt, and the sequences in decoding. The sum is multiplied by
the replica's time per token. A cached prefix is thus worth exactly the time that it saves. Nearly equal estimates are
common while replicas are idle. In that case the first block of the prompt decides (rendezvous hashing), so that
several orchestrators make the same choice without communication.

A replica reports its load, which includes the calls of all orchestrators, and the keys that it holds. Calls started
since the last report are added. Stale reports are ignored. In that case only the orchestrator's own calls count, with
the keys that these calls left at the replica. This is the least-requests rule, weighted by work.

The time per prompt token is learned from the times to first tokens. The fixed part of a first token's time, apart from
its prompt, is nearly the same at all replicas. It is subtracted, because otherwise a replica that receives mostly
cached prompts would seem slow.

Invariants:
    1. A replica to be avoided is never chosen.
    2. A silent replica is chosen only while all replicas are silent.
    3. A call that has ended no longer counts.
    4. At most `MAX_KEYS` keys are remembered for a replica in each of two sets: reported keys, and the keys of this
       orchestrator's calls.

Sources: the shortest expected work, M. Harchol-Balter, "Performance Modeling and Design of Computer Systems", 2013,
chapter 24; rendezvous hashing, D. Thaler and C. Ravishankar, 1998.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from services.orchestrator.core.routing.prefixes import BLOCK_BYTES, PromptPrefixes

FIRST_TOKEN_S = 0.002
# A replica's time per token is a mean over approximately this number of its last tokens.
_REMEMBERED_TOKENS = 16_384.0
# Weight, in tokens, of the mean of all replicas in the estimate for one replica. A smaller weight would let noise look
# like a difference, because later arrivals also delay first tokens. A replica that is several times slower still stands
# out.
_SHARED_TOKENS = 16_384.0
# The remembered minimum grows by this factor with each call, so that an old minimum loses its effect.
_LEAST_GROWTH = 1.01
_LEAST_TOKEN_S = 1e-6
MAX_KEYS = 16_384
NEWS_AGE_S = 2.0
# A replica reports the keys of a call within this time. After that, unreported keys count as not held.
SENT_AGE_S = 5.0
# A sequence in decoding delays a prompt about as much as this number of tokens of another prompt.
DECODED_TOKENS = 12
# Estimates that differ by at most this factor count as equal, because they may differ only by chance.
ALIKE = 1.05
# New tokens count twice, because the tokens of a prompt delay later prompts as much as the prompt itself.
NEW_WEIGHT = 2.0
FIRST_BYTES_PER_TOKEN = 4.0
FIRST_ANSWER_S = 1.0
MIN_BYTES_PER_TOKEN = 0.5
_LEARNING = 0.1


@dataclass(slots=True)
class Speed:
    """The number of recently computed tokens, and the time that they took."""

    tokens: float = 0.0
    seconds: float = 0.0

    def learn(self, tokens: float, seconds: float) -> None:
        """Add the tokens and the time of a call."""
        kept = math.exp(-tokens / _REMEMBERED_TOKENS)
        self.tokens = self.tokens * kept + tokens
        self.seconds = self.seconds * kept + seconds

    def token_s(self, expected_s: float) -> float:
        """Return the time per token, where `expected_s` is the mean time of all replicas."""
        return max(_LEAST_TOKEN_S, (self.seconds + _SHARED_TOKENS * expected_s) / (self.tokens + _SHARED_TOKENS))


class Speeds:
    """The mean speed of all replicas, and the fixed part of the time to a first token."""

    def __init__(self) -> None:
        self._all = Speed(1.0, FIRST_TOKEN_S)
        self._least_s = math.inf

    @property
    def expected_s(self) -> float:
        """The time per token of a replica without measurements."""
        return self._all.seconds / self._all.tokens

    def learn(self, speed: Speed, tokens: float, seconds: float) -> None:
        """Record that a replica of this speed returned a first token.

        Args:
            speed: The speed of the replica.
            tokens: The number of prompt tokens computed before the first token.
            seconds: The time to the first token.
        """
        self._least_s = min(seconds, self._least_s * _LEAST_GROWTH)
        for each in (speed, self._all):
            each.learn(tokens, seconds - self._least_s)


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a replica for all its callers: prompt tokens to compute, and running and waiting sequences.

    `seats` is the number of sequences that the replica can run at the same time.
    """

    pending_tokens: int = 0
    running: int = 0
    waiting: int = 0
    seats: int = 0


@dataclass(eq=False, slots=True)
class Call:
    """A call that has not ended.

    `new_tokens` is the number of prompt tokens expected to be computed for this call, and `before_tokens` is the number
    expected to be computed before them for other calls. `seat_s` is the expected wait for a seat.
    """

    replica: str
    prefixes: PromptPrefixes
    new_tokens: float
    before_tokens: float
    seat_s: float
    begun_s: float
    started_s: float | None = None


@dataclass(slots=True)
class _Replica:
    reported: dict[int, None] = field(default_factory=dict)
    sent_s: OrderedDict[int, float] = field(default_factory=OrderedDict)
    calls: set[Call] = field(default_factory=set)
    load: Load = Load()
    news_s: float = -math.inf
    is_mute: bool = False
    speed: Speed = field(default_factory=Speed)
    answer_s: float = FIRST_ANSWER_S

    def has_news(self, now_s: float) -> bool:
        return now_s - self.news_s <= NEWS_AGE_S

    def load_at(self, now_s: float, expected_s: float) -> Load:
        """Return the load according to the last report and the calls since then.

        If the report is old, only this orchestrator's calls count.
        """
        load, since_s = Load(seats=self.load.seats), -math.inf
        if self.has_news(now_s):
            load, since_s = self.load, self.news_s
        recent = [call for call in self.calls if call.begun_s >= since_s]
        pending = sum(call.new_tokens for call in recent if call.started_s is None)
        if load.pending_tokens:
            pending += max(0.0, load.pending_tokens - (now_s - self.news_s) / self.speed.token_s(expected_s))
        return Load(round(pending), load.running + len(recent), load.waiting, load.seats)

    def held_blocks(self, keys: Iterable[int], now_s: float) -> int:
        """Return the number of leading blocks of a prompt that the replica holds."""
        sent_since_s = -math.inf
        if self.has_news(now_s):
            sent_since_s = now_s - SENT_AGE_S
        blocks = 0
        for key in keys:
            if key not in self.reported and self.sent_s.get(key, -math.inf) <= sent_since_s:
                break
            blocks += 1
        return blocks

    def send(self, keys: Iterable[int], now_s: float) -> None:
        """Record the keys of a prompt that is sent to the replica."""
        for key in keys:
            self.sent_s[key] = now_s
            self.sent_s.move_to_end(key)
        while len(self.sent_s) > MAX_KEYS:
            self.sent_s.popitem(last=False)


class Replicas:
    """The replicas of one service, by address."""

    def __init__(self) -> None:
        self._replicas: dict[str, _Replica] = {}
        self._speeds = Speeds()
        self._bytes_per_token = FIRST_BYTES_PER_TOKEN

    def resolve(self, addresses: Collection[str]) -> None:
        """Set the current addresses of the service, and remove all other replicas."""
        self._replicas = {address: self._replicas.get(address) or _Replica() for address in addresses}

    def choose(self, prefixes: PromptPrefixes, now_s: float, avoided: Collection[str] = ()) -> Call | None:
        """Return a call to the replica with the lowest estimate, or None if there is no replica.

        The call counts as work of the replica until it ends.
        """
        candidates = [address for address in self._replicas if address not in avoided]
        talking = [address for address in candidates if self._is_talking(address, now_s)]
        plans = [self._plan(address, prefixes, now_s) for address in talking or candidates]
        if not plans:
            return None
        call = self._best(plans)
        replica = self._replicas[call.replica]
        replica.calls.add(call)
        replica.send(prefixes.keys, now_s)
        return call

    def start(self, call: Call, prompt_tokens: int, cached_tokens: int, now_s: float) -> None:
        """Record that the prompt of a call was computed."""
        call.started_s = now_s
        if prompt_tokens and call.prefixes.size_bytes:
            bytes_per_token = max(MIN_BYTES_PER_TOKEN, call.prefixes.size_bytes / prompt_tokens)
            self._bytes_per_token += _LEARNING * (bytes_per_token - self._bytes_per_token)
        replica = self._replicas.get(call.replica)
        if replica is not None:
            work = call.before_tokens + max(1, prompt_tokens - cached_tokens)
            self._speeds.learn(replica.speed, work, max(0.0, now_s - call.begun_s - call.seat_s))

    def end(self, call: Call, now_s: float) -> None:
        """Record that a call has ended, whether it succeeded or failed."""
        replica = self._replicas.get(call.replica)
        if replica is None or call not in replica.calls:
            return
        replica.calls.remove(call)
        if call.started_s is not None:
            replica.answer_s += _LEARNING * ((now_s - call.started_s) - replica.answer_s)

    def note_load(self, address: str, load: Load, now_s: float) -> None:
        """Record a report of a replica's load."""
        replica = self._replicas.get(address)
        if replica is not None:
            replica.load, replica.news_s = load, now_s

    def note_keys(self, address: str, added: Iterable[int], removed: Iterable[int], *, is_first: bool) -> None:
        """Record a report of the keys that a replica holds. The first report replaces all earlier keys."""
        replica = self._replicas.get(address)
        if replica is None:
            return
        if is_first:
            replica.reported.clear()
        for key in removed:
            replica.reported.pop(key, None)
        replica.reported.update(dict.fromkeys(added))
        for key in list(replica.reported)[MAX_KEYS:]:
            del replica.reported[key]

    def note_mute(self, address: str) -> None:
        """Record that a replica never sends reports, so that missing reports do not count against it."""
        replica = self._replicas.get(address)
        if replica is not None:
            replica.is_mute = True

    def work_of(self, address: str, now_s: float) -> Load:
        """Return the current work of a replica, as far as it is known."""
        return self._replicas[address].load_at(now_s, self._speeds.expected_s)

    def keys_of(self, address: str) -> int:
        """Return the number of reported keys that are remembered for a replica."""
        return len(self._replicas[address].reported)

    def _is_talking(self, address: str, now_s: float) -> bool:
        replica = self._replicas[address]
        return replica.is_mute or replica.has_news(now_s)

    def _plan(self, address: str, prefixes: PromptPrefixes, now_s: float) -> Call:
        replica = self._replicas[address]
        cached_bytes = replica.held_blocks(prefixes.keys, now_s) * BLOCK_BYTES
        new_tokens = max(1.0, (prefixes.size_bytes - cached_bytes) / self._bytes_per_token)
        load = replica.load_at(now_s, self._speeds.expected_s)
        before_tokens = load.pending_tokens + DECODED_TOKENS * load.running
        over = load.running + load.waiting + 1 - load.seats
        seat_s = 0.0
        if load.seats and over > 0:
            seat_s = replica.answer_s * over / load.seats
        return Call(address, prefixes, new_tokens, before_tokens, seat_s, now_s)

    def _best(self, plans: Sequence[Call]) -> Call:
        estimates = [self._estimate_s(call) for call in plans]
        nearly_s = ALIKE * min(estimates)
        alike = [call for call, estimate_s in zip(plans, estimates, strict=True) if estimate_s <= nearly_s]
        return min(alike, key=lambda call: _distance(call.prefixes, call.replica))

    def _estimate_s(self, call: Call) -> float:
        work_tokens = call.before_tokens + NEW_WEIGHT * call.new_tokens
        return work_tokens * self._replicas[call.replica].speed.token_s(self._speeds.expected_s) + call.seat_s


def _distance(prefixes: PromptPrefixes, address: str) -> bytes:
    first = prefixes.keys[:1]
    return hashlib.blake2b(f"{first} {address}".encode(), digest_size=8).digest()
