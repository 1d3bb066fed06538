"""The functions that surround calls of other services, the outermost first: observe, charge, permit, search."""
