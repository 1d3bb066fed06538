"""The widgets on the terminal program's screen."""
