"""One execution: its lifecycle, its machine, and what its journal keeps."""
