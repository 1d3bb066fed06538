"""Runs the migrations that the collections' database lacks."""

from pagantic_common.storage.migration import run_steps

run_steps()
