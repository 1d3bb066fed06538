"""Runs the steps that the database of the collections lacks."""

from pagantic_common.storage.migration import run_steps

run_steps()
