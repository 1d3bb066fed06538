"""The guards of a deployment, and the texts of a request that the guards check."""
