"""The functions around calls of other services, outermost first: observe, charge, permit, search."""
