"""Shows answers on the command line, over connections that may be lost."""
