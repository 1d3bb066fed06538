"""Registers IPython formatters for protobuf messages, because methods cannot be added to these.

IPython is not a dependency.
"""

from __future__ import annotations

import sys
from typing import Any

from pagantic.orchestrator.v1 import decision_pb2, execution_pb2
from pagantic_common.client.notebook.responses import decision_bundle, execution_bundle, response_bundle


def load_ipython_extension(shell: Any) -> None:
    """Register formatters for responses, executions and decisions in this IPython shell."""
    formatter = shell.display_formatter.mimebundle_formatter
    formatter.for_type(execution_pb2.SystemResponse, response_bundle)
    formatter.for_type(execution_pb2.Execution, execution_bundle)
    formatter.for_type(decision_pb2.Decision, decision_bundle)


def enable_if_running() -> None:
    """Enable the formatters in the IPython shell that runs this program, if any."""
    if (shell := running_shell()) is not None:
        load_ipython_extension(shell)


def running_shell() -> Any:
    """Return the IPython shell that runs this program, or None outside IPython."""
    find_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    if find_shell is None:
        return None
    return find_shell()
