"""What a notebook shows of the client's results. A running notebook has it from the import of the client on.

`%load_ext pagantic_common.client.notebook` does it for a shell that began after that import.
"""

from pagantic_common.client.notebook.formatters import load_ipython_extension

__all__ = ["load_ipython_extension"]
