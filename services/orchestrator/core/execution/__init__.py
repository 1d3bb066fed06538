"""One execution: its lifecycle, its machine, and its journal entries."""
