"""One way to start a server, one way to open a channel, one way to make a call, one table of statuses."""
