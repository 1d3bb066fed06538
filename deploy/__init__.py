"""Local supervisor, images, manifests and decision records."""
