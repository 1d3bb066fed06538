"""The store on disk and the client of the inference service."""
