"""Converts between the protos that several services share and the domain types. It applies no policy."""
