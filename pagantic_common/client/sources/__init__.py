"""The client's methods for collections, tools, prompt templates and models, and for uploading files."""
