"""`python -m tests.support.rerun FILE`: run the failed tests of a run once more, alone.

`pytest --failures=FILE` writes FILE. A test that passes now is flaky: it is named with its first failure, and the run
is green. More than three failures are not flakiness: nothing runs again, and the exit status is 1.
"""

import json
import subprocess
import sys
from pathlib import Path

MAX_FLAKY = 3


def main():
    failures = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if len(failures) > MAX_FLAKY:
        sys.stdout.write(f"{len(failures)} tests failed, more than the {MAX_FLAKY} that are run again\n")
        return 1
    sys.stdout.write(f"running the {len(failures)} failed tests again, alone\n")
    sys.stdout.flush()
    done = subprocess.run([sys.executable, "-m", "pytest", *failures], check=False)
    if done.returncode == 0:
        for name, report in failures.items():
            sys.stdout.write(f"flaky: {name} passed when it ran alone; it failed first with\n{report}\n\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
