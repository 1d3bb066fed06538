"""An execution: its lifecycle, its state machine, and its journal entries."""
