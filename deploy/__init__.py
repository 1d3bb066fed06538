"""Deployment of pagantic: the local supervisor, images, manifests and decision records."""
