"""What is installed is what was locked: every package has a hash, and no install goes without."""

import re
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))
SHARED = ["requirements.lock", "requirements-dev.lock", "requirements-build.lock", "requirements-locking.lock"]
ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)(.*?)(?: \\)?$((?:\n    --hash=\S+(?: \\)?)*)", re.MULTILINE)


def entries(name):
    return ENTRY.findall((ROOT / name).read_text())


def test_the_locks_are_those_that_the_makefile_compiles():
    compiled = re.findall(r"-o (requirements\S*\.lock)", (ROOT / "Makefile").read_text())
    assert sorted(compiled) == LOCKS


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_lock_has_a_hash(name):
    packages = re.findall(r"^[^\s#-].*", (ROOT / name).read_text(), re.MULTILINE)
    assert len(entries(name)) == len(packages) > 0
    assert [entry[0] for entry in entries(name) if "--hash=sha256:" not in entry[3]] == []


def test_packages_are_installed_with_their_hashes_or_from_files_that_lie_here():
    recipes = (ROOT / "Makefile").read_text() + (ROOT / "deploy" / "Dockerfile").read_text()
    installs = re.findall(r".*\bpip (?:install|wheel)\b.*", recipes)
    assert len(installs) >= 3
    assert [line for line in installs if "--require-hashes" not in line and "--no-index" not in line] == []


@pytest.mark.parametrize(("one", "other"), list(combinations(SHARED, 2)))
def test_locks_for_one_environment_agree(one, other):
    versions = {(name, marker): version for name, version, marker, _ in entries(one)}
    differing = [
        (name, versions[name, marker], version)
        for name, version, marker, _ in entries(other)
        if versions.get((name, marker), version) != version
    ]
    assert differing == []
