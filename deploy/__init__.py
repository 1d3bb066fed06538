"""Deploys pagantic: local supervisor, images, manifests and decision records."""
