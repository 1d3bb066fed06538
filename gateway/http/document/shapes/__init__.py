"""The shapes of answers, for the document of the API: the fields of every kind of answer, and their types.

A field that may be ABSENT is in some answers only. Answers may have further fields.
"""
