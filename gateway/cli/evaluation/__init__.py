"""Commands that evaluate suites of cases."""
