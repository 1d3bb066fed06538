"""What a deployment has to answer from: the client's methods, and files on their way there."""
