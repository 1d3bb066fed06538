"""Where a request goes: all paths, the dialect that its client speaks, and what is measured of it."""
