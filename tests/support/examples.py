"""How many examples property tests try: a sample for each commit, or all with PAGANTIC_TEST_EXAMPLES=all."""

import os

AT_EACH_COMMIT = 25
IS_WHOLE = os.environ.get("PAGANTIC_TEST_EXAMPLES") == "all"


def examples(count):
    """Return the number of examples of a test that tries `count` of them in a whole run."""
    if IS_WHOLE:
        return count
    return min(count, AT_EACH_COMMIT)
