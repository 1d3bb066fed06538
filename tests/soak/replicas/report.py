"""What became of the calls, by what happened meanwhile."""

from __future__ import annotations

from collections import Counter

from tests.soak.replicas.system import say

SHOWN = 6
SLOWEST = 3
HARD = ("kill", "cut", "freeze")  # they take a replica without a word, twice perhaps from one answer
COLUMNS = (
    "times",
    "calls",
    "failed",
    "again",
    "contin.",
    "discard.",
    "longest",
    "first p50",
    "p95",
    "at rest p50",
    "p95",
)


def report(calls, happened):
    """Print a table; returns the calls that failed and may not."""
    at_rest = _first_tokens(call for call in calls if not any(call.overlaps(*_times(one)) for one in happened))
    say(f"{'event':18}" + "".join(f"{name:>12}" for name in COLUMNS))
    for kind in sorted({one.kind for one in happened}):
        those = [one for one in happened if one.kind == kind]
        _print_row(kind, those, [call for call in calls if _is_during(call, those)], at_rest)
    _print_row("all", happened, calls, at_rest)
    failed = [call for call in calls if call.error]
    for call in failed:
        kinds = sorted({one.kind for one in happened if call.overlaps(*_times(one))})
        say(f"  failed during {' '.join(kinds) or 'nothing'}: {call.kind} {call.request_id} after ")
        say(f"    {call.ended_s - call.sent_s:.1f} s, {len(call.streamed)} characters: {call.error}: {call.why[:200]}")
    return [call for call in failed if not _may_fail(call, happened)]


def _print_row(kind, those, calls, at_rest):
    first = _first_tokens(calls)
    numbers = (
        len(those),
        len(calls),
        sum(bool(call.error) for call in calls),
        sum(bool(call.refusals) for call in calls),
        sum(call.continued for call in calls),
        sum(call.discarded for call in calls),
        f"{max((call.ended_s - call.sent_s for call in calls), default=0.0):.1f} s",
        *(f"{_quantile(times, share):.2f} s" for times in (first, at_rest) for share in (0.5, 0.95)),
    )
    say(f"{kind:18}" + "".join(f"{number:>12}" for number in numbers))
    for call in sorted(calls, key=lambda call: call.sent_s - call.ended_s)[:SLOWEST]:
        since_s = call.sent_s - max((one.began_s for one in those if one.began_s <= call.ended_s), default=call.sent_s)
        took_s = call.ended_s - call.sent_s
        say(f"    {took_s:.1f} s took {call.kind} {call.request_id}, sent {since_s:.1f} s after the beginning")
    again = Counter(refusal[:110] for call in calls for refusal in call.refusals)
    for refusal, count in again.most_common(SHOWN):
        say(f"    {count:4} sent again after {refusal}")


def _times(event):
    return event.began_s, event.ended_s


def _is_during(call, events):
    return any(call.overlaps(*_times(event)) for event in events)


def _may_fail(call, happened):
    """Whether an answer was lost a second time, after it had been continued or begun again once."""
    hard = [one for one in happened if one.kind in HARD]
    return _is_during(call, hard) and call.continued + call.discarded > 0


def _first_tokens(calls):
    return sorted(call.first_s - call.sent_s for call in calls if call.first_s is not None)


def _quantile(ordered, share):
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
