"""How much of a slow test runs: a sample in `make test`, or all of it in `make test-whole`."""

import os

AT_EACH_COMMIT = 25
# `make test-whole` sets it.
IS_WHOLE = os.environ.get("PAGANTIC_TEST_WHOLE") == "1"


def examples(count, at_each_commit=AT_EACH_COMMIT):
    """Return the number of examples of a property test that tries `count` of them in a whole run."""
    return count if IS_WHOLE else min(count, at_each_commit)


def sample(items, step):
    """Return every `step`th item as a list, or all items in a whole run. The test is marked `sampled`."""
    return list(items)[:: 1 if IS_WHOLE else step]
