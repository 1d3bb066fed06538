"""Displays the client's results in notebooks. Importing the client in a running notebook enables the display.

`%load_ext pagantic_common.client.notebook` enables the display in a shell that started after the import.
"""

from pagantic_common.client.notebook.formatters import load_ipython_extension

__all__ = ["load_ipython_extension"]
