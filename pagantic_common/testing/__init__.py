"""Test doubles and harnesses that every service's tests share."""
