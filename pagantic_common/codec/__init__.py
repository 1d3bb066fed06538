"""Between the protos that several services share and the domain: total and without policy."""
