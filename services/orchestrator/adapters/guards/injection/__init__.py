"""A small classifier of injections: logistic regression over hashed n-grams."""
