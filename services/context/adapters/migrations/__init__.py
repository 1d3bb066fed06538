"""Steps from each version of the tables of the collections to the next."""
