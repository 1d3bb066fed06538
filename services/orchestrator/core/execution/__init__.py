"""The record of an execution: its events, the progress of its work, and the replay of its entries."""
