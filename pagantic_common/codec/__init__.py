"""Conversion between the protos that several services share and the domain. It is total and applies no policy."""
