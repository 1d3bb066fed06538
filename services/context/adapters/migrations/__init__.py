"""Steps from one version of the tables of the collections to the next."""
