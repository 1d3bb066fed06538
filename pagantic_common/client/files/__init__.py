"""Files of this machine on their way to a collection."""
