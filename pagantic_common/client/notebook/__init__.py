"""Displays the client's results in notebooks. Importing the client in a running notebook enables it.

`%load_ext pagantic_common.client.notebook` enables it in a shell started after that import.
"""

from pagantic_common.client.notebook.formatters import load_ipython_extension

__all__ = ["load_ipython_extension"]
