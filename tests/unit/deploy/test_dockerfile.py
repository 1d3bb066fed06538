"""The Dockerfile: hadolint finds nothing in it, and it ends as a user without rights."""

import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parents[3] / "deploy" / "Dockerfile"


def test_hadolint_finds_nothing():
    done = subprocess.run(
        [Path(sys.executable).parent / "hadolint", FILE], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_last_layers_are_packages_models_and_the_product():
    last = FILE.read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    copied = [line.split()[2] for line in last.splitlines() if line.startswith("COPY --from=builder")]
    assert copied == ["/opt/pagantic", "/build/models", "/build/product"]
    assert "\nUSER 10001:10001\n" in last
