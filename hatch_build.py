"""Builds the wheel, in which `services`, `gateway` and `deploy` are parts of the package `pagantic` (decision 0081).

Their imports of each other are changed in the wheel's copies of the files, line by line, so that tracebacks have the
line numbers of the checkout. An installation for development has the folders as they are.
"""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MOVED = ("services", "gateway", "deploy")
# Of `deploy`: what `pagantic up` and the demo need. Manifests, pages and clients are for readers of the repository.
_FILES = (
    "services/**/*",
    "gateway/**/*",
    "deploy/*.py",
    "deploy/local/*.py",
    "deploy/examples/*.json",
    "deploy/examples/*.txt",
)
_LEFT_OUT = ("*.pyc", "*/README.md", "deploy/local/engine_wheel.py")


class MoveIntoPackage(BuildHookInterface[Any]):
    """Puts the three folders into the package `pagantic` of the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the changed files to a temporary folder, which the wheel includes."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        for path, content in moved_files(Path(self.root)):
            target = Path(self._folder.name) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        build_data["force_include"][self._folder.name] = "pagantic"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        del build_data, artifact_path
        if version != "editable":
            self._folder.cleanup()


def moved_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the path within the package `pagantic`, and the content, of each file of the three folders."""
    for file in sorted({file for pattern in _FILES for file in root.glob(pattern)}):
        path = file.relative_to(root).as_posix()
        if not file.is_file() or any(fnmatch(path, pattern) for pattern in _LEFT_OUT):
            continue
        if file.suffix == ".py":
            yield path, change_imports(file.read_text(encoding="utf-8"), path).encode()
        else:
            yield path, file.read_bytes()


def change_imports(source: str, path: str) -> str:
    """Return a module's source with its imports of the three folders changed. Raises ValueError for `import services`.

    `path` names the module in errors.
    """
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Import) and any(name.name.partition(".")[0] in MOVED for name in node.names):
            raise ValueError(f"{path}:{node.lineno}: write `from package import module`, which the wheel can change")
        if isinstance(node, ast.ImportFrom) and node.level == 0 and str(node.module).partition(".")[0] in MOVED:
            number, start = node.lineno - 1, node.col_offset
            lines[number] = lines[number][:start] + lines[number][start:].replace("from ", "from pagantic.", 1)
    return "\n".join(lines)
