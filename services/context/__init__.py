"""The context service, a separate process that stores collections and retrieves chunks for requests."""
