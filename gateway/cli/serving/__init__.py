"""Commands that start servers and look after them."""
