"""A small classifier of prompt injections: logistic regression over hashed n-grams."""
