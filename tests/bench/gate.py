"""`python -m tests.bench.gate`: how often the gate of evaluations catches a true regression, and a false one."""

import argparse

from tests.support.regressions import is_caught, regressed

POINTS = (0, 1, 2, 5, 10)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    rounds = parser.parse_args().rounds
    for cases in (50, 200, 400, 1000):
        for points in POINTS:
            caught = sum(is_caught(*regressed(seed, points, cases), seed=seed) for seed in range(rounds))
            line = f"{cases:5} cases, worse by {points:2} points: caught {caught / rounds:.3f} of {rounds}"
            print(line, flush=True)  # noqa: T201 - it is a command


if __name__ == "__main__":
    main()
