"""Models by name: the catalog, the folder of pulled models, and what a model's file says about itself."""
