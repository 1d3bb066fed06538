"""What the doors over HTTP share: who may come in, with how much, for how long, and what answers probes."""
