"""Files that people write: values of YAML, and requests in their short forms."""
