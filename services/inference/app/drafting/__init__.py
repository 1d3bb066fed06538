"""Has a draft model guess the tokens of the branches that a plan grants drafts."""
