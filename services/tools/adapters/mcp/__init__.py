"""Model Context Protocol servers, by the official SDK behind limits of our own."""
