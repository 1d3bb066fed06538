"""What people write into files: values of YAML, and requests in their short forms."""
