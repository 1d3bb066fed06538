"""The context service, a separate process that stores collections and finds the chunks that requests need."""
