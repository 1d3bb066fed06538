"""Reports of evaluations: figures, shown as tables, as JSON and as an HTML page."""
