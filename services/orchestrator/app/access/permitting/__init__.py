"""The services as the operator's policies let each tenant use them."""
