"""Test doubles and harnesses that the tests of all services share."""
