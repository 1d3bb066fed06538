"""Shows answers on the command line and recovers from lost connections."""
