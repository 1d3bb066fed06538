"""Runs the migration steps that the journal's database lacks."""

from pagantic_common.storage.migration import run_steps

run_steps()
