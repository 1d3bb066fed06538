"""OpenAI's `/v1/responses` and `/v1/conversations`."""
