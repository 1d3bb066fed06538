"""The model of MODEL_PATH: its weights, its loading, and its tuning."""
