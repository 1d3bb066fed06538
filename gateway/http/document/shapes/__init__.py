"""The shapes of answers, for the document of the API: which fields every answer of a kind has, and of which types.

A field that may be ABSENT is in some answers alone. Answers may have further fields.
"""
