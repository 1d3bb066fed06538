"""The only code that starts a server, opens a channel or makes a call, and the only table of statuses."""
