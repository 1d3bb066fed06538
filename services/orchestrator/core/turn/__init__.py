"""The machine of a request: each module has one phase, with its commands, their answers and what follows them."""
