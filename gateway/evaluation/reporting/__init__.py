"""Reports of evaluations: their figures, as tables, as JSON and as a page of HTML."""
