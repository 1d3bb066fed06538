"""Images that nobody here made: those that Supervisor's web page shows."""

from importlib.resources import files

PNG, GIF, OTHER_GIF = "icon.png", "supervisor.gif", "state0.gif"


def sample_image(name=PNG):
    """Return the bytes of an image."""
    return files("supervisor").joinpath("ui", "images", name).read_bytes()
