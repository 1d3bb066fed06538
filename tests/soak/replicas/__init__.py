"""A system whose hosts are network namespaces, under load while its parts are replaced, killed and cut off."""
