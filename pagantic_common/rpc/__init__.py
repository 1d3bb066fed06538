"""The only way to start a server, open a channel and make a call, and the only table of statuses."""
