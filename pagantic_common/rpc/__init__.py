"""Starts servers, opens channels, makes calls, and maps errors to statuses. No other code does any of these."""
